"""File systems of datasets: local folders and S3 buckets, their listings, and which files are still being written."""
