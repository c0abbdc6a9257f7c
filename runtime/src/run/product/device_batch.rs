//! Several products on a GPU as one submission.

use crate::cuda::{DeviceActivations, DeviceBuffer, Gpu, Graph};
use crate::error::Error;
use crate::kernel::QuantizedProduct;
use crate::linear::Linear;
use crate::workspace::Workspace;
use std::sync::Arc;

/// Products of several layers, of any formats and shapes, that go to a GPU as one submission: all of them are looked at before
/// the first is enqueued, they are enqueued one behind the other, kernel by kernel, and nobody waits in between;
/// or they are [captured](DeviceBatch::graph) as a graph, which one call launches. Results have the bits of separate runs, each in the
/// buffer that was given with the product.
///
/// Each product reads activations that are [quantized](Linear::quantize_on_device), shared ones or its own.
///
/// ```
/// use gristmill_runtime::cuda::{DeviceActivations, DeviceBatch, DeviceBuffer};
/// use gristmill_runtime::{Error, Linear, Workspace};
///
/// /// Query, key and value of tokens that are quantized, where value has another format.
/// fn project<'a>(
///     layers: [&'a Linear; 3],
///     x: &DeviceActivations<'a>,
///     outputs: [&'a mut DeviceBuffer<f32>; 3],
///     workspace: &mut Workspace,
/// ) -> Result<(), Error> {
///     let mut batch = DeviceBatch::new();
///     for (layer, y) in layers.into_iter().zip(outputs) {
///         batch.push(layer, x, None, y)?;
///     }
///     batch.run(workspace)
/// }
/// # let _ = project;
/// ```
#[derive(Debug, Default)]
#[must_use = "nothing is computed before `run`"]
pub struct DeviceBatch<'a> {
    products: Vec<Queued<'a>>,
}

/// A product that was looked at.
#[derive(Debug)]
struct Queued<'a> {
    product: QuantizedProduct<'a>,
    x: DeviceActivations<'a>,
    bias: Option<&'a DeviceBuffer<f32>>,
    y: &'a mut DeviceBuffer<f32>,
}

impl<'a> DeviceBatch<'a> {
    /// A batch of no products, which is run at once.
    pub fn new() -> DeviceBatch<'a> {
        DeviceBatch::default()
    }

    /// Adds a product, whose results will be in `y` (`m * n` values). Everything about it is looked at here; a product that is refused
    /// leaves the batch as it was.
    ///
    /// # Errors
    /// As for [`Linear::forward_quantized_on_device`]; [`Error::WrongDevice`] for another device or stream than that of the products before;
    /// [`Error::Overlap`] where one product writes what another one reads or writes, since they may run in any order.
    pub fn push(
        &mut self,
        layer: &'a Linear,
        x: &DeviceActivations<'a>,
        bias: Option<&'a DeviceBuffer<f32>>,
        y: &'a mut DeviceBuffer<f32>,
    ) -> Result<(), Error> {
        let product = layer.quantized_product(x, bias, y)?;
        let kernel = product.kernel().name;
        if let Some(first) = self.products.first()
            && !Arc::ptr_eq(first.y.gpu(), y.gpu())
        {
            return Err(Error::WrongDevice { kernel, index: first.y.gpu().profile().index });
        }
        for other in &self.products {
            let written = [other.bias, Some(&*other.y)].into_iter().flatten().any(|read| read.overlaps(y));
            if written || bias.is_some_and(|bias| bias.overlaps(other.y)) {
                return Err(Error::Overlap { kernel, what: "another product of the batch" });
            }
        }
        self.products.push(Queued { product, x: *x, bias, y });
        Ok(())
    }

    /// How many products were added.
    pub fn len(&self) -> usize {
        self.products.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty()
    }

    /// Enqueues all of them, and waits for none. `workspace` holds partial sums, where k is split.
    ///
    /// # Errors
    /// [`Error::OutOfDeviceMemory`], [`Error::Gpu`], [`Error::Capturing`] while another thread captures.
    pub fn run(mut self, workspace: &mut Workspace) -> Result<(), Error> {
        self.enqueue(workspace)
    }

    /// Enqueues all of them once, which makes what memory they need, and captures them as a graph, which computes them again for
    /// whatever is in the activations' memory when it is launched. `None` for a batch of no products.
    ///
    /// # Errors
    /// As for [`run`](DeviceBatch::run); [`Error::Capturing`] within a capture.
    pub fn graph(mut self, workspace: &mut Workspace) -> Result<Option<Graph>, Error> {
        let Some(gpu) = self.gpu() else { return Ok(None) };
        self.enqueue(workspace)?;
        gpu.capture(|| self.enqueue(workspace)).map(Some)
    }

    fn gpu(&self) -> Option<Arc<Gpu>> {
        self.products.first().map(|first| Arc::clone(first.y.gpu()))
    }

    fn enqueue(&mut self, workspace: &mut Workspace) -> Result<(), Error> {
        // Stable: products of one kernel, whose image the caches of instructions then hold, keep their order.
        self.products.sort_by_key(|queued| std::ptr::from_ref(queued.product.kernel()) as usize);
        for Queued { product, x, bias, y } in &mut self.products {
            product.enqueue(x, *bias, y, workspace)?;
        }
        Ok(())
    }
}
