"""File systems of datasets: local folders and buckets, their listings, and which files are still being written."""
