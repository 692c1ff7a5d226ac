"""The tools of the model: `execute_bash`, `str_replace_editor`, `submit`, and the tools that a run adds."""
