//! The connection that a command works on.

use anyhow::{Context, Result, ensure};
use onesided::blocking::{Client, Table};
use onesided::{ClientBuilder, FabricChoice};

use crate::args::{Cli, Fabric};

/// How a command ended, when it did not fail with an error of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Exit code 0.
    Done,
    /// The key is absent, or the condition was not met: exit code 1.
    Absent,
    /// Some of it failed, and each was named: exit code 2.
    Failed,
}

/// A client, and what the command line says about all commands.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) server: String,
    pub(crate) json: bool,
    table: String,
}

impl Session {
    /// Connects as the command line says.
    pub(crate) fn open(cli: &Cli) -> Result<Self> {
        let mut builder = builder(cli)?;
        // `auto` leaves the choice to the URL.
        builder = match cli.fabric {
            Fabric::Auto => builder,
            Fabric::Shm => builder.fabric(FabricChoice::Shm),
            Fabric::Verbs => builder.fabric(FabricChoice::Verbs),
            Fabric::Tcp => builder.fabric(FabricChoice::Tcp),
        };
        let client = builder.connect_blocking()?;
        Ok(Self { client, server: url(cli), json: cli.json, table: cli.table.clone() })
    }

    /// The table of `--table`.
    pub(crate) fn table(&self) -> Result<Table> {
        Ok(self.client.table(&self.table)?)
    }
}

/// The server's URL.
pub(crate) fn url(cli: &Cli) -> String {
    match cli.server.as_deref().unwrap_or("127.0.0.1:7411") {
        url if url.contains("://") => url.to_owned(),
        place => format!("onesided://{place}"),
    }
}

/// All that the command line says about connecting but the fabric.
pub(crate) fn builder(cli: &Cli) -> Result<ClientBuilder> {
    let timeout_ms = u64::from(cli.timeout_ms);
    let mut builder: ClientBuilder = onesided::Client::builder()
        .url(url(cli))
        .rdma_device(cli.rdma_device.clone())
        .connect_timeout_ms(timeout_ms)
        .operation_timeout_ms(timeout_ms);
    if let Some(rdma) = cli.rdma {
        builder = builder.rdma(rdma);
    }
    if let Some(mtu) = cli.rdma_mtu {
        builder = builder.rdma_mtu(mtu);
    }
    if let Some(ms) = cli.idle_timeout_ms {
        builder = builder.idle_timeout_ms(ms);
    }
    if let Some(ms) = cli.better_fabric_retry_ms {
        builder = builder.better_fabric_retry_ms(ms);
    }
    if let Some(file) = &cli.token_file {
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("token file {}", file.display()))?;
        // As the server reads it: white space around it does not belong to it.
        let token = token.trim();
        ensure!(!token.is_empty(), "token file {} is empty", file.display());
        builder = builder.token(token);
    }
    Ok(builder)
}
