"""Images and labels: from the hub or a folder, and how they are cut into three parts."""
