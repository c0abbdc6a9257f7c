//! Launches as spans: those whose time is taken, with their numbers, in a process of its own because a program has one observer.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_ops::{Monitor, MonitorOptions};
use gristmill_runtime::{
    Dequantizer, Device, Input, Linear, LinearOptions, Policy, QuantizedMatrix, Request, Threads,
};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<String, String>;

/// Spans with their fields, in the order in which they ended, and events.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<Fields>, Vec<Fields>)>>);

struct Into<'f>(&'f mut Fields);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::from([("name".to_owned(), attributes.metadata().name().to_owned())]);
        attributes.record(&mut Into(&mut fields));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(&mut Into(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Into(&mut fields));
        self.0.lock().expect("nobody panics").1.push(fields);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let fields = context.span(&id).and_then(|span| span.extensions_mut().remove::<Fields>());
        self.0.lock().expect("nobody panics").0.extend(fields);
    }
}

#[test]
fn timed_launches_are_spans() -> Result<(), Box<dyn std::error::Error>> {
    let seen = Seen::default();
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    Monitor::start(&toy::REGISTRY, MonitorOptions { sample_every: 3, ..MonitorOptions::default() })?;
    let weights = toy::tiny8(4, 8);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TINY8], 4, 8, &weights)?;
    let prepared = toy::REGISTRY.prepare(&Request::dequantize("tiny8", 4, 8))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut values = vec![0.0; 32];
    // The third and the sixth of seven.
    for _ in 0..7 {
        dequantizer.run(&matrix, &mut values)?;
    }
    let spans = std::mem::take(&mut seen.0.lock().expect("nobody panics").0);
    assert_eq!(spans.len(), 2, "{spans:?}");
    for span in &spans {
        let text = |name: &str| span.get(name).map(String::as_str);
        assert_eq!((text("name"), text("op")), (Some("launch"), Some("\"dequantize\"")), "{span:?}");
        assert_eq!((text("n"), text("k"), text("m")), (Some("4"), Some("8"), Some("1")), "{span:?}");
        assert_eq!((text("bytes_out"), text("fault")), (Some("128"), Some("false")), "{span:?}");
        assert!(text("us").and_then(|us| us.parse::<f64>().ok()).is_some_and(|us| us > 0.0), "{span:?}");
    }
    // A fault is told, and a fallback is an event.
    let threads = Threads::single();
    let options = LinearOptions { device: Device::cuda(0), policy: Policy::Cpu, ..LinearOptions::default() };
    let layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    let mut workspace = layer.workspace(1, &threads)?;
    let (mut y, bad) = (vec![0.0; 4], [f32::NAN; 8]);
    for _ in 0..3 {
        assert!(layer.forward(Input::F32(&bad), 1, None, &mut y, &mut workspace, &threads).is_err());
    }
    let (spans, events) = std::mem::take(&mut *seen.0.lock().expect("nobody panics"));
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(spans[0].get("fault").map(String::as_str), Some("true"), "{spans:?}");
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(events[0].get("message").map(String::as_str), Some("fallback"));
    assert_eq!(events[0].get("device").map(String::as_str), Some("cuda:0"));
    Ok(())
}
