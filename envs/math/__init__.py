"""Math problems, one answer a problem: files, Hugging Face data sets and generated families."""
