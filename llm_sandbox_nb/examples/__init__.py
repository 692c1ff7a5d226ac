"""Ten examples, modelled on those of the paper's project: six for its domains, and four that produce media files."""
