//! The ucma ABI, version 4: the commands and their layouts.
//!
//! The layouts are those of `rdma/rdma_user_cm.h`; each size is checked at compile time. Fields are
//! in host byte order unless they are marked as network order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of the private-data field.
pub const PRIVATE_DATA_FIELD: usize = 256;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $size:literal {
        $($(#[$fdoc:meta])* $field:ident: $ty:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
            const _: () = assert!(std::mem::size_of::<$name>() == $size);
        )*
    };
}

/// Numbers of the commands.
#[allow(missing_docs)]
pub mod cmd {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    pub const RESOLVE_IB_SERVICE: u32 = 23;
    pub const WRITE_CM_EVENT: u32 = 24;
}

/// Numbers of the events (`enum rdma_cm_event_type`).
#[allow(missing_docs)]
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const TIMEWAIT_EXIT: u32 = 15;
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// Options of QUERY.
#[allow(missing_docs)]
pub mod query {
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
}

/// Levels and names of SET_OPTION.
#[allow(missing_docs)]
pub mod option {
    pub const LEVEL_ID: u32 = 0;
    pub const LEVEL_IB: u32 = 1;
    pub const ID_TOS: u32 = 0;
    pub const ID_REUSEADDR: u32 = 1;
    pub const ID_AFONLY: u32 = 2;
    pub const ID_ACK_TIMEOUT: u32 = 3;
    pub const IB_PATH: u32 = 1;
}

/// `enum rdma_mc_join_flags` of JOIN_MCAST.
#[allow(missing_docs)]
pub mod join {
    pub const FULL_MEMBER: u16 = 0;
    pub const SEND_ONLY: u16 = 1;
}

/// `IBV_QPT_RC`.
pub const QPT_RC: u8 = 2;
/// `IBV_QPT_UD`.
pub const QPT_UD: u8 = 4;
/// `IBV_QPT_XRC_SEND`.
pub const QPT_XRC_SEND: u8 = 9;
/// `IBV_QPT_XRC_RECV`.
pub const QPT_XRC_RECV: u8 = 10;

layouts! {
    /// The header of every command.
    Header = 8 {
        /// The command.
        cmd: u32,
        /// Octets of the command after this header.
        input: u16,
        /// Size of the answer buffer in octets.
        output: u16,
    }
    /// CREATE_ID.
    CreateId = 24 {
        /// The application's identifier of the id.
        uid: u64,
        /// Address of the answer buffer.
        response: u64,
        /// Port space.
        ps: u16,
        /// QP type, for RDMA_PS_IB only.
        qp_type: u8,
        /// Zero.
        reserved: [u8; 5],
    }
    /// DESTROY_ID and LEAVE_MCAST.
    DestroyId = 16 {
        /// Address of the answer buffer.
        response: u64,
        /// The id.
        id: u32,
        /// Zero.
        reserved: u32,
    }
    /// `struct sockaddr_in6`, which also has room for a `sockaddr_in`.
    SockaddrIn6 = 28 {
        /// Address family and address.
        octets: [u8; 28],
    }
    /// `struct __kernel_sockaddr_storage`.
    SockaddrStorage = 128 {
        /// Address family and address.
        octets: [u8; 128],
    }
    /// BIND_IP.
    BindIp = 40 {
        /// Unused.
        response: u64,
        /// The address.
        addr: SockaddrIn6,
        /// The id.
        id: u32,
    }
    /// BIND.
    Bind = 136 {
        /// The id.
        id: u32,
        /// Octets of the address.
        addr_size: u16,
        /// Zero.
        reserved: u16,
        /// The address.
        addr: SockaddrStorage,
    }
    /// RESOLVE_IP.
    ResolveIp = 64 {
        /// Local address, family 0 for any.
        src_addr: SockaddrIn6,
        /// The peer's address.
        dst_addr: SockaddrIn6,
        /// The id.
        id: u32,
        /// Timeout in milliseconds.
        timeout_ms: u32,
    }
    /// RESOLVE_ADDR.
    ResolveAddr = 272 {
        /// The id.
        id: u32,
        /// Timeout in milliseconds.
        timeout_ms: u32,
        /// Octets of the local address, 0 for any.
        src_size: u16,
        /// Octets of the peer's address.
        dst_size: u16,
        /// Zero.
        reserved: u32,
        /// Local address.
        src_addr: SockaddrStorage,
        /// The peer's address.
        dst_addr: SockaddrStorage,
    }
    /// RESOLVE_ROUTE.
    ResolveRoute = 8 {
        /// The id.
        id: u32,
        /// Timeout in milliseconds.
        timeout_ms: u32,
    }
    /// QUERY_ROUTE and QUERY.
    Query = 16 {
        /// Address of the answer buffer.
        response: u64,
        /// The id.
        id: u32,
        /// See [`query`].
        option: u32,
    }
    /// `struct ib_user_path_rec`.
    PathRec = 64 {
        /// Destination GID.
        dgid: [u8; 16],
        /// Source GID.
        sgid: [u8; 16],
        /// Destination LID, network order.
        dlid: u16,
        /// Source LID, network order.
        slid: u16,
        /// Raw traffic.
        raw_traffic: u32,
        /// Flow label, network order.
        flow_label: u32,
        /// Reversible.
        reversible: u32,
        /// MTU, encoded as `ibv_mtu`.
        mtu: u32,
        /// P_Key, network order.
        pkey: [u8; 2],
        /// Hop limit.
        hop_limit: u8,
        /// Traffic class.
        traffic_class: u8,
        /// Number of paths.
        numb_path: u8,
        /// Service level.
        sl: u8,
        /// Selector of `mtu`; 2: exactly.
        mtu_selector: u8,
        /// Selector of `rate`; 2: exactly.
        rate_selector: u8,
        /// Rate, encoded as `ibv_rate`.
        rate: u8,
        /// Selector of `packet_life_time`; 2: exactly.
        packet_life_time_selector: u8,
        /// `4.096 us * 2^n`.
        packet_life_time: u8,
        /// Preference.
        preference: u8,
    }
    /// Answer to QUERY_ROUTE.
    QueryRouteResp = 208 {
        /// Node GUID, network order.
        node_guid: [u8; 8],
        /// The paths.
        ib_route: [PathRec; 2],
        /// Local address.
        src_addr: SockaddrIn6,
        /// The peer's address.
        dst_addr: SockaddrIn6,
        /// Number of valid entries of `ib_route`.
        num_paths: u32,
        /// Port of the device; 0 while none is chosen.
        port_num: u8,
        /// Zero.
        reserved: [u8; 3],
        /// Index of the device.
        ibdev_index: u32,
        /// Zero.
        reserved1: u32,
    }
    /// Answer to QUERY with [`query::ADDR`] and [`query::GID`].
    QueryAddrResp = 280 {
        /// Node GUID, network order.
        node_guid: [u8; 8],
        /// Port of the device; 0 while none is chosen.
        port_num: u8,
        /// Zero.
        reserved: u8,
        /// P_Key, network order.
        pkey: [u8; 2],
        /// Octets of `src_addr`.
        src_size: u16,
        /// Octets of `dst_addr`.
        dst_size: u16,
        /// Local address.
        src_addr: SockaddrStorage,
        /// The peer's address.
        dst_addr: SockaddrStorage,
        /// Index of the device.
        ibdev_index: u32,
        /// Zero.
        reserved1: u32,
    }
    /// Answer to QUERY with [`query::PATH`], before the paths.
    QueryPathResp = 8 {
        /// Number of paths that follow.
        num_paths: u32,
        /// Zero.
        reserved: u32,
    }
    /// One path of the answer to QUERY with [`query::PATH`].
    PathRecData = 72 {
        /// Flags of the path (`IB_PATH_*`).
        flags: u32,
        /// Zero.
        reserved: u32,
        /// An SA path record in wire format.
        path_rec: [u8; 64],
    }
    /// Parameters of a connection.
    ConnParam = 272 {
        /// QP number.
        qp_num: u32,
        /// Q_Key, for datagrams.
        qkey: u32,
        /// Private data.
        private_data: [u8; PRIVATE_DATA_FIELD],
        /// Octets of private data.
        private_data_len: u8,
        /// The QP has a shared receive queue.
        srq: u8,
        /// IRD.
        responder_resources: u8,
        /// ORD.
        initiator_depth: u8,
        /// End-to-end flow control.
        flow_control: u8,
        /// Transport retries.
        retry_count: u8,
        /// RNR retries.
        rnr_retry_count: u8,
        /// Zero in the ACCEPT of the active side.
        valid: u8,
    }
    /// Enhanced connection establishment.
    Ece = 8 {
        /// Vendor id.
        vendor_id: u32,
        /// Options.
        attr_mod: u32,
    }
    /// CONNECT. `reserved` and `ece` may be missing.
    Connect = 288 {
        /// Parameters.
        conn_param: ConnParam,
        /// The id.
        id: u32,
        /// Zero.
        reserved: u32,
        /// Enhanced connection establishment.
        ece: Ece,
    }
    /// LISTEN.
    Listen = 8 {
        /// The id.
        id: u32,
        /// Maximum number of pending REQs.
        backlog: u32,
    }
    /// ACCEPT. `reserved` and `ece` may be missing.
    Accept = 296 {
        /// The application's identifier of the id.
        uid: u64,
        /// Parameters.
        conn_param: ConnParam,
        /// The id.
        id: u32,
        /// Zero.
        reserved: u32,
        /// Enhanced connection establishment.
        ece: Ece,
    }
    /// REJECT.
    Reject = 264 {
        /// The id.
        id: u32,
        /// Octets of private data.
        private_data_len: u8,
        /// Reason; 0 means "consumer defined".
        reason: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Private data.
        private_data: [u8; PRIVATE_DATA_FIELD],
    }
    /// DISCONNECT.
    Disconnect = 4 {
        /// The id.
        id: u32,
    }
    /// INIT_QP_ATTR.
    InitQpAttr = 16 {
        /// Address of the answer buffer.
        response: u64,
        /// The id.
        id: u32,
        /// UcmaState for which attributes are wanted.
        qp_state: u32,
    }
    /// `struct ib_uverbs_ah_attr`.
    AhAttr = 32 {
        /// Destination GID.
        dgid: [u8; 16],
        /// Flow label.
        flow_label: u32,
        /// Index of the source GID.
        sgid_index: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Traffic class.
        traffic_class: u8,
        /// Zero.
        grh_reserved: u8,
        /// Destination LID.
        dlid: u16,
        /// Service level.
        sl: u8,
        /// Source path bits.
        src_path_bits: u8,
        /// Static rate.
        static_rate: u8,
        /// Whether the GRH fields are valid.
        is_global: u8,
        /// Port.
        port_num: u8,
        /// Zero.
        reserved: u8,
    }
    /// `struct ib_uverbs_qp_attr`: answer to INIT_QP_ATTR.
    QpAttr = 144 {
        /// The valid fields, as `ibv_qp_attr_mask`.
        qp_attr_mask: u32,
        /// UcmaState.
        qp_state: u32,
        /// Current state.
        cur_qp_state: u32,
        /// Path MTU, encoded as `ibv_mtu`.
        path_mtu: u32,
        /// Migration state.
        path_mig_state: u32,
        /// Q_Key.
        qkey: u32,
        /// First PSN expected.
        rq_psn: u32,
        /// First PSN sent.
        sq_psn: u32,
        /// The peer's QP number.
        dest_qp_num: u32,
        /// Remote access allowed.
        qp_access_flags: u32,
        /// Path.
        ah_attr: AhAttr,
        /// Alternate path.
        alt_ah_attr: AhAttr,
        /// Capacities: send and receive requests, SGEs, inline data; unused.
        cap: [u32; 5],
        /// Index of the P_Key.
        pkey_index: u16,
        /// Index of the alternate P_Key.
        alt_pkey_index: u16,
        /// SQD event wanted.
        en_sqd_async_notify: u8,
        /// Send queue is draining.
        sq_draining: u8,
        /// ORD.
        max_rd_atomic: u8,
        /// IRD.
        max_dest_rd_atomic: u8,
        /// RNR timer.
        min_rnr_timer: u8,
        /// Port.
        port_num: u8,
        /// Local acknowledgement timeout.
        timeout: u8,
        /// Transport retries.
        retry_cnt: u8,
        /// RNR retries.
        rnr_retry: u8,
        /// Alternate port.
        alt_port_num: u8,
        /// Alternate timeout.
        alt_timeout: u8,
        /// Zero.
        reserved: [u8; 5],
    }
    /// NOTIFY.
    Notify = 8 {
        /// The id.
        id: u32,
        /// An `ibv_event_type`.
        event: u32,
    }
    /// GET_EVENT.
    GetEvent = 8 {
        /// Address of the answer buffer.
        response: u64,
    }
    /// Parameters of a datagram service.
    UdParam = 304 {
        /// QP number.
        qp_num: u32,
        /// Q_Key.
        qkey: u32,
        /// Address handle attributes of the QP.
        ah_attr: AhAttr,
        /// Private data.
        private_data: [u8; PRIVATE_DATA_FIELD],
        /// Octets of private data.
        private_data_len: u8,
        /// Zero.
        reserved: [u8; 7],
    }
    /// Answer to GET_EVENT; the parameters of datagram events are longer than [`ConnParam`].
    EventResp = 336 {
        /// The application's identifier of the id.
        uid: u64,
        /// The id.
        id: u32,
        /// See [`event`].
        event: u32,
        /// 0, a negative errno, or the reason of a REJ.
        status: u32,
        /// Parameters.
        conn: ConnParam,
        /// Rest of the union of parameters.
        rest: [u8; 32],
        /// Zero.
        reserved: u32,
        /// Enhanced connection establishment.
        ece: Ece,
    }
    /// SET_OPTION.
    SetOption = 24 {
        /// Address of the value.
        optval: u64,
        /// The id.
        id: u32,
        /// See [`option`].
        level: u32,
        /// See [`option`].
        optname: u32,
        /// Octets of the value.
        optlen: u32,
    }
    /// MIGRATE_ID.
    MigrateId = 16 {
        /// Address of the answer buffer.
        response: u64,
        /// The id.
        id: u32,
        /// The file to which the id belongs now.
        fd: u32,
    }
    /// JOIN_IP_MCAST.
    JoinIpMcast = 48 {
        /// Address of the answer buffer.
        response: u64,
        /// The application's identifier of the membership.
        uid: u64,
        /// The group.
        addr: SockaddrIn6,
        /// The id.
        id: u32,
    }
    /// JOIN_MCAST.
    JoinMcast = 152 {
        /// Address of the answer buffer.
        response: u64,
        /// The application's identifier of the membership.
        uid: u64,
        /// The id.
        id: u32,
        /// Octets of the address.
        addr_size: u16,
        /// See [`join`].
        join_flags: u16,
        /// The group.
        addr: SockaddrStorage,
    }
    /// WRITE_CM_EVENT, as far as it is used: the parameters are a union.
    WriteCmEvent = 24 {
        /// The id.
        id: u32,
        /// Zero.
        reserved: u32,
        /// [`event::USER`] or [`event::INTERNAL`].
        event: u32,
        /// Status of the event.
        status: u32,
        /// Argument of the event.
        arg: u64,
    }
}
