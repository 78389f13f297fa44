//! What a device is doing, for monitors and people: Prometheus text, JSON, and a live page over HTTP.
//!
//! Lives here:       collecting the state, the catalogue of metrics, the text, an HTTP server of a few pages.
//! Lives elsewhere:  the figures (`kaml`), connected hosts (`kaml-nvme`), a terminal's view (`kaml-cli`).
//! Implements:       docs/metrics.md; the Prometheus text format 0.0.4; RFC 9112 as far as GET and HEAD need it.
//!
//! ```
//! use kaml::{CreateOptions, Device};
//! use kaml_metrics::{Detail, Server, State};
//!
//! let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
//! let text = State::of(&device, Detail::Figures).prometheus();
//! assert!(text.contains("# TYPE kaml_puts_total counter\nkaml_puts_total 0\n"));
//!
//! let server = Server::start("127.0.0.1:0", move |detail| State::of(&device, detail))?;
//! println!("http://{}/", server.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod catalog;
mod exposition;
mod request;
mod server;
mod state;

pub use catalog::{METRICS, Metric, MetricKind};
pub use server::{Error, Server};
pub use state::{Detail, Host, State};

/// The live page: one document without references to others.
pub const PAGE: &str = include_str!("page.html");
