//! The figures of the model; docs/scale.md says where each comes from.

/// As measured (docs/scale.md).
const WORK: f64 = 170e6;

/// A site, and what is deployed.
#[derive(Clone, Debug, clap::Args)]
pub struct Model {
    /// Bytes of the snapshot
    #[arg(long, default_value_t = 2e9)]
    pub bytes: f64,
    /// Pieces that it is sent in, 128 at most
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub pieces: u32,
    /// A node's link, bytes each second
    #[arg(long, default_value_t = 1.25e9)]
    pub link: f64,
    /// Seconds from a piece's last byte sent until its receiver passes it on
    #[arg(long, default_value_t = 0.000_2)]
    pub latency: f64,
    /// Bytes each second that a node passes on, checks and writes of what comes
    #[arg(long, default_value_t = WORK)]
    pub work: f64,
    /// Share of nodes that are slow
    #[arg(long, default_value_t = 0.001)]
    pub stragglers: f64,
    /// How fast those are, of the others' speed
    #[arg(long, default_value_t = 0.1)]
    pub slowness: f64,
    /// Share of nodes that fail meanwhile
    #[arg(long, default_value_t = 0.000_1)]
    pub failures: f64,
    /// Seconds until others notice that
    #[arg(long, default_value_t = 1.0)]
    pub notice: f64,
    /// Seconds until nodes of the relay leave a slow one
    #[arg(long, default_value_t = 2.0)]
    pub trial: f64,
    /// Bytes each second that all servers of a parallel file system give together
    #[arg(long, default_value_t = 100e9)]
    pub lustre: f64,
    /// Bytes each second that an NFS server gives
    #[arg(long, default_value_t = 1.25e9)]
    pub nfs: f64,
    /// Files that such servers open each second
    #[arg(long, default_value_t = 20_000.0)]
    pub opens: f64,
    /// Share of the bytes that a program reads before it runs
    #[arg(long, default_value_t = 0.05)]
    pub first: f64,
    /// Nodes that each node of sbcast's tree sends to
    #[arg(long, default_value_t = 8)]
    pub sbcast_width: u32,
    /// Bytes of a block of sbcast
    #[arg(long, default_value_t = 8e6)]
    pub sbcast_block: f64,
}

impl Model {
    /// Bytes of a piece.
    pub fn piece(&self) -> f64 {
        self.bytes / f64::from(self.pieces)
    }
}
