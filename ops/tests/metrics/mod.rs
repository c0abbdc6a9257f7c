//! What stands in a monitor's metrics.

use prometheus_parse::{Scrape, Value};

/// The value of the sample with these labels.
pub fn scraped(scrape: &Scrape, metric: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let sample = scrape.samples.iter().find(|sample| {
        sample.metric == metric && labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
    })?;
    match sample.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => Some(value),
        Value::Histogram(_) | Value::Summary(_) => None,
    }
}
