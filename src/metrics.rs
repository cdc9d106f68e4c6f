//! `urdma metrics`: counters and gauges of an instance, for Prometheus.

use clap::Args;
use urdma_ipc::metrics;

use crate::error::Error;
use crate::target::Target;

/// Options of `urdma metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    target: Target,
}

/// Prints the metrics.
pub(crate) fn metrics(args: &MetricsArgs) -> Result<(), Error> {
    let status = args.target.connect()?.status()?;
    print!("{}", metrics::text(&status));
    Ok(())
}
