"""Models on this machine, `local/NAME`: their files, and the child process that serves a model.

| module | subject |
|---|---|
| `table` | the models with a name |
| `source` | the place of a model's file: in the table, at a path, or on Hugging Face |
| `wheels` | fetching of a file in the table |
| `hub` | fetching of a file on Hugging Face |
| `store` | the folder of fetched files, and known checksums |
| `gguf` | the header of a model's file |
| `machine` | free memory, disk and processors |
| `server` | start and end of the server; `engine` is the program in the child process |
| `local_model` | the model in a run |
"""
