"""Twenty-one faults that control libraries of this kind have had, and the tests that each of them would fail here.

What must hold, and where that is tested, below tests/:

 1. A second training of an equal agent traces and compiles nothing.
    faults/test_trainings.py::test_a_second_training_compiles_nothing
    rl/test_learner.py::test_everything_compiles_once
 2. A run is as long as asked, a step counts once, and the state that is kept is the one that was evaluated last.
    faults/test_trainings.py::test_a_run_ends_at_its_budget_and_keeps_what_it_evaluated
    rl/test_learner.py::test_a_thousand_steps_are_a_thousand_rows
    rl/test_learner.py::test_a_window_cut_short_is_recorded_and_teaches_an_on_policy_agent_nothing
 3. Every line of a curve was measured, however often one asks.
    faults/test_trainings.py::test_a_curve_holds_no_padding
 4. What is accepted is reported, and measured with the agent's own discount.
    extensions/test_instrumentation.py::test_every_measurement_is_reported_by_a_trained_agent
    extensions/test_instrumentation.py::test_residuals_use_the_agents_own_discount_and_reward_scale
    extensions/test_pairs.py::test_every_accepted_extension_trains
 5. An average-reward agent reports its average reward, and the bias of its values.
    faults/test_programs.py::test_an_average_reward_agent_reports_its_average_reward_in_every_window
    agents/test_asac.py::test_two_updates_follow_the_equations
    agents/test_asac.py::test_the_ladder_is_climbed_by_differences
    rl/test_evaluate.py::test_a_never_ending_world_is_scored_by_the_step
    extensions/test_instrumentation.py::test_the_soft_average_reward_target_goes_on_from_where_the_world_begins_anew
 6. No slow copy is read of an agent that keeps none.
    extensions/test_target_mods.py::test_an_agent_without_slow_critics_is_read_by_its_live_ones
 7. What cannot work is refused where it is built, before anything is compiled or written.
    faults/test_trainings.py::test_what_cannot_work_is_refused_before_anything_is_compiled_or_written
    rl/test_learner.py::test_every_extension_that_does_not_fit_is_named
 8. A light nudge takes smaller steps and leaves the optimiser's moments as they were.
    rl/test_phi.py::test_a_light_nudge_takes_small_steps_and_leaves_the_moments_alone
 9. A time limit, or the end of what was seen, is no end of the return.
    rl/test_phi.py::test_a_time_limit_does_not_make_the_expert_look_worse
    rl/test_rehearse.py::test_returns_tell_what_was_seen_and_where_it_goes_on
10. Pretraining plays what it has a use for, counts it, learns in random order, and happens once in a run's life.
    faults/test_updates.py::test_what_is_learnt_before_the_run_is_not_learnt_again_where_it_goes_on
    faults/test_draws.py::test_the_experts_rows_are_learnt_from_in_random_order
    rl/test_phi.py::test_no_more_rows_are_played_than_have_a_use_and_copies_go_first
    extensions/test_pretrain.py::test_what_they_report
11. The value that a box adds is in the reward's own units, and ends a row but no episode.
    extensions/test_target_mods.py::test_the_box_pays_the_value_once_where_a_copy_enters
    extensions/test_target_mods.py::test_in_a_run_the_box_ends_rows_and_not_episodes
12. Every copy draws for itself.
    extensions/test_exploration.py::test_a_fixed_gate_opens_for_each_copy_by_itself
    extensions/test_exploration.py::test_experts_act_in_training_in_copies_of_their_own_and_while_the_agent_warms_up
13. A guide acts during the warm-up too.
    extensions/test_expert_training.py::test_the_expert_opens_episodes_in_training_while_the_agent_warms_up_too
    extensions/test_exploration.py::test_experts_act_in_training_in_copies_of_their_own_and_while_the_agent_warms_up
14. The metrics of a delayed step are means over the updates that took it.
    faults/test_updates.py::test_a_delayed_actor_is_measured_where_it_moves_and_computed_nowhere_else
    agents/test_td3.py::test_a_window_without_an_actor_step_logs_no_loss
15. An interval is met whatever the number of copies.
    rl/test_fold.py::test_an_interval_is_crossed_whatever_the_stride
    extensions/test_pretrain.py::test_a_refresh_takes_a_step_in_each_of_the_last_updates_and_then_shows_the_result
16. Each extension draws from a key of its own in every phase, wherever it stands.
    faults/test_draws.py::test_every_extension_has_a_key_of_its_own_in_every_phase
    rl/test_fold.py::test_an_extensions_draws_are_its_own_wherever_it_stands
17. An expert by itself changes nothing.
    faults/test_updates.py::test_an_expert_that_nobody_asks_changes_no_bit
    faults/test_programs.py::test_an_expert_without_an_extension_is_no_part_of_the_program
    extensions/test_expert_training.py::test_an_expert_that_is_only_reported_neither_acts_nor_fills_the_replay
18. Agents and the loop know no extension.
    faults/test_programs.py::test_agents_and_the_loop_know_no_extension
    faults/test_programs.py::test_extensions_keep_their_state_to_themselves
    test_contracts.py::test_every_import_keeps_the_contracts
19. Datasets are arguments of a program, one for all seeds, and known by their content.
    faults/test_programs.py::test_a_dataset_is_no_constant_of_the_program
    extensions/test_prior_data.py::test_its_rows_are_what_the_program_is_given_and_not_constants_of_it
    extensions/test_adversarial.py::test_demonstrations_reach_the_program_as_arguments
    rl/test_dataset.py::test_returns_and_next_actions_equal_the_recursion_row_by_row
20. The replay is no larger than the run, and keeps no column that nobody reads.
    faults/test_programs.py::test_the_replay_takes_the_bytes_of_the_rows_that_the_run_can_fill
    rl/test_feeds.py::test_the_ring_is_no_larger_than_the_run
21. Nothing is computed to be thrown away.
    faults/test_updates.py::test_nothing_is_learnt_before_learning_starts
    faults/test_updates.py::test_a_delayed_actor_is_measured_where_it_moves_and_computed_nowhere_else
"""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = str(__doc__)


def test_the_table_above_names_tests_that_exist():
    named = re.findall(r"([\w/]+\.py)::(test_\w+)", TABLE)
    items = [int(number) for number in re.findall(r"^ ?(\d+)\. ", TABLE, re.MULTILINE)]
    assert items == list(range(1, 22))
    for file, test in named:
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), (file, test)
