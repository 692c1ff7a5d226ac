"""Ten examples, after those of the paper's project: six domains, and four whose results are media files."""
