"""perdure.report.facts."""

import re

import pytest
import yaml

from perdure.report import facts


def test_the_run_table_tells_seeds_steps_source_and_versions(run_maker):
    table = facts.run_table([run_maker(boundary_source="oracle")])
    for text in ("0 to 3", "12,000", "finished", "oracle", "21.5 s", "jax 0.10.0", "2026-01-01T00:00:00Z"):
        assert text in table


def test_what_was_not_recorded_is_said(run_maker):
    table = facts.run_table([run_maker()._replace(meta={})])
    assert table.count("not recorded") == 4
    assert "12,000" in table


def test_a_finished_run_gives_no_caution(run_maker):
    assert facts.cautions([run_maker()]) == []


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_every_state_short_of_finished_is_a_caution(run_maker, status):
    (told,) = facts.cautions([run_maker(status=status)])
    assert f"is {status} at 12,000 steps" in told


def test_failures_interruptions_and_warnings_are_told(run_maker):
    event = {"step": 5, "kind": "warning", "message": "reward component cost is constant"}
    runs = [
        run_maker(status="failed", error="RunFailed: step 7"),
        run_maker(status="interrupted", done_steps=400)._replace(warnings=["torn last line"], events=[event]),
    ]
    told = facts.cautions(runs)
    assert told[0].endswith("failed: RunFailed: step 7")
    assert "is interrupted at 400 of 12,000 steps" in told[1]
    assert told[2].endswith("torn last line")
    assert told[3].endswith("step 5: reward component cost is constant")


def test_long_event_lists_are_cut_and_counted(run_maker):
    events = [{"step": i, "kind": "alarm", "message": ""} for i in range(facts.MOST_EVENTS + 5)]
    table = facts.event_table([run_maker()._replace(events=events)])
    assert table.count("alarm") == facts.MOST_EVENTS
    assert "5 further events" in table


def test_differences_name_the_key_and_both_values(run_maker):
    table = facts.difference_table([run_maker("ppo"), run_maker("ppo_redo")])
    assert "algorithm.extensions" in table
    assert "ppo_redo" in table
    assert "discount" not in table


def test_equal_documents_have_no_differences(run_maker):
    assert facts.difference_table([run_maker(seeds=(0,)), run_maker(seeds=(1,))]) is None


def test_documents_are_folded_yaml_that_reads_back(run_maker):
    run = run_maker()
    (folded,) = facts.documents([run, run])
    text = re.search("<code>(.*)</code>", folded, re.S).group(1)
    assert yaml.safe_load(text) == run.meta["config"]


def test_runs_without_a_document_say_so(run_maker):
    (said,) = facts.documents([run_maker()._replace(meta={})])
    assert "record no document" in said
