"""Brain tumours from four MRI sequences."""
