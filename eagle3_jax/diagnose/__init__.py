"""Why a draft does worse than it should: what is stored, how it is read, and what that costs."""
