"""Columns of Arrow, as leaves of records. What reads Parquet and Hugging Face shares this."""
