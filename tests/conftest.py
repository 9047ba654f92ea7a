"""What every test shares: property tests draw the same examples each time, with no deadline, since cores are shared."""

import hypothesis

hypothesis.settings.register_profile("perdure", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("perdure")
