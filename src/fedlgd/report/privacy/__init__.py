"""What a report says about privacy: what left each site, what is promised, and what attacks found."""
