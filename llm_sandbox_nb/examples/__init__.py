"""Ten examples, modelled on the paper's project: six domains, and four examples that produce media files."""
