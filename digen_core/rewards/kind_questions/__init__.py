"""Questions about kinds of prompts for which published suites have detectors, asked of a judge."""
