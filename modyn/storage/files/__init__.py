"""File systems of datasets: local folders and buckets, their listings, and the detection of files that are still being written."""
