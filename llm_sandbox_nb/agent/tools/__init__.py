"""The model's tools: execute_bash, str_replace_editor, submit."""
