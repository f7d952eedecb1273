"""Many runs in one place: a folder of Parquet files that every engine reads, and the questions asked of all of them."""
