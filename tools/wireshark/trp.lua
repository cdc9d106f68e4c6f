-- TRP, the transport of urdma: UDP ports 21504..21757, as specified in doc/spec/trp.md; and the
-- messages of channels, its transport inside a host, as specified in doc/spec/channel.md (section
-- 7). A program's own capture has both. The first octet of a TRP packet is 16 or more, that of a
-- message is less.
--
-- The TRP header, its extensions and connection management are decoded here. The DDP segments of
-- a DATA, UDATA or TRAIN packet are passed to Wireshark's own iwarp_ddp_rdmap, except Immediate
-- Data (RDMAP opcodes 8 and 9), which it does not know.

local trp = Proto("trp", "Thin Reliable Protocol")

local PORT_BASE, PORT_LAST = 21504, 21757
local HEADER_LEN, EXTENSION_WORDS_MAX = 16, 25
local VERSION = 1
local DATAGRAM_HEADER_LEN = 48
local RESET_REASONS = {
  [0] = "no QP %d", [1] = "QP %d in ERR", [2] = "QP %d not connected",
  [3] = "no context at target %d",
}
local DATA, RNR, RESET, CM, DATAGRAM, UDATA, TRAIN = 0, 2, 3, 7, 8, 9, 10
local TRAIN_SEGMENTS_MAX, TRAIN_SEGMENT_MIN = 16, 14

local TYPES = {
  [0] = "DATA", [1] = "ACK", [2] = "RNR", [3] = "RESET", [4] = "FIN", [5] = "FIN_ACK",
  [6] = "PROBE", [7] = "CM",
  [8] = "DATAGRAM", [9] = "UDATA", [10] = "TRAIN",
}

local OPCODES = {
  [0] = "RDMA Write", [1] = "RDMA Read Request", [2] = "RDMA Read Response", [3] = "Send",
  [4] = "Send with Invalidate", [5] = "Send with SE", [6] = "Send with SE and Invalidate",
  [7] = "Terminate", [8] = "Immediate Data", [9] = "Immediate Data with SE",
  [10] = "Atomic Request", [11] = "Atomic Response",
}

local KINDS = {
  [1] = "SACK", [2] = "Timestamp", [3] = "RNR timer", [4] = "Shared receive queue",
  [5] = "DC connect", [6] = "DC refused",
}

-- ibv_modify_qp(3), min_rnr_timer, in microseconds.
local RNR_US = {
  [0] = 655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
  5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680,
  491520,
}

local f = {
  version = ProtoField.uint8("trp.version", "Version", base.DEC, nil, 0xf0),
  type = ProtoField.uint8("trp.type", "Type", base.DEC, TYPES, 0x0f),
  flags = ProtoField.uint8("trp.flags", "Flags", base.HEX),
  ar = ProtoField.bool("trp.flags.ar", "Acknowledgement requested", 8, nil, 0x01),
  imm = ProtoField.bool("trp.flags.imm", "Send has immediate data", 8, nil, 0x02),
  ece = ProtoField.bool("trp.flags.ece", "ECN echo", 8, nil, 0x04),
  ep = ProtoField.bool("trp.flags.ep", "Epoch of requests", 8, nil, 0x08),
  tr = ProtoField.bool("trp.flags.tr", "Sender takes trains", 8, nil, 0x10),
  entry_imm = ProtoField.bool("trp.train.imm", "Send has immediate data", 16, nil, 0x8000),
  entry_len = ProtoField.uint16("trp.train.length", "Length of the segment", base.DEC, nil, 0x7fff),
  entry_psn = ProtoField.uint24("trp.train.psn", "PSN of the segment", base.DEC),
  index = ProtoField.uint16("trp.index", "Destination QP index", base.DEC),
  qpn = ProtoField.uint24("trp.qpn", "Destination QP number", base.HEX),
  slot = ProtoField.uint8("trp.slot", "Destination slot", base.DEC),
  source_slot = ProtoField.uint8("trp.source_slot", "Source slot", base.DEC),
  id = ProtoField.uint32("trp.id", "Connection id", base.HEX),
  reason = ProtoField.uint8("trp.reset_reason", "Reason", base.DEC, RESET_REASONS, 0x7f),
  acknowledges = ProtoField.bool(
    "trp.reset_acknowledges", "Acknowledgement is valid", 8, nil, 0x80),
  window = ProtoField.uint8("trp.window", "Receive window, units of 256 packets", base.DEC),
  psn = ProtoField.uint24("trp.psn", "PSN", base.DEC),
  unknown_index = ProtoField.uint24("trp.unknown_index", "QP index that was addressed", base.DEC),
  words = ProtoField.uint8("trp.extension_words", "Extension length, words", base.DEC),
  ack = ProtoField.uint24("trp.ack", "Cumulative ACK, next PSN expected", base.DEC),
  kind = ProtoField.uint8("trp.ext.kind", "Kind", base.DEC, KINDS),
  length = ProtoField.uint8("trp.ext.words", "Words that follow", base.DEC),
  argument = ProtoField.uint16("trp.ext.argument", "Argument", base.HEX),
  sack = ProtoField.bytes("trp.sack", "Bitmap from ACK + 1 + 32 * argument on"),
  sacked = ProtoField.string("trp.sack.psns", "PSNs received"),
  ts_value = ProtoField.uint32("trp.ts.value", "Sender's clock, us", base.DEC),
  ts_echo = ProtoField.uint32("trp.ts.echo", "Echo, us", base.DEC),
  rnr_timer = ProtoField.uint16("trp.rnr_timer", "RNR timer code", base.DEC, nil, 0x1f),
  shared_queue = ProtoField.uint32("trp.shared_queue", "Shared receive queue", base.HEX),
  rnr_us = ProtoField.uint32("trp.rnr_us", "Wait, us", base.DEC),
  dc_timeout = ProtoField.uint8("trp.dc.timeout", "Acknowledge timeout code", base.DEC),
  dc_retries = ProtoField.uint8("trp.dc.retries", "Retries", base.DEC),
  dc_initiator = ProtoField.uint24("trp.dc.initiator", "QP number of the initiator", base.HEX),
  dc_epoch = ProtoField.uint64("trp.dc.epoch", "Epoch", base.DEC),
  dc_key = ProtoField.uint64("trp.dc.key", "Access key", base.HEX),
  dc_token = ProtoField.uint32("trp.dc.token", "Token", base.HEX),
  dc_confirmed = ProtoField.uint24("trp.dc.confirmed", "Confirmed PSN", base.DEC),
  dc_floor = ProtoField.uint64("trp.dc.floor", "Floor", base.DEC),
  body = ProtoField.bytes("trp.ext.body", "Body"),
  opcode = ProtoField.uint8("trp.opcode", "RDMAP opcode", base.DEC, OPCODES, 0x0f),
  immediate = ProtoField.uint32("trp.immediate", "Immediate data", base.HEX),
  last = ProtoField.bool("trp.ddp.last", "Last segment", 8, nil, 0x40),
  dv = ProtoField.uint8("trp.ddp.version", "DDP version", base.DEC, nil, 0x03),
  rv = ProtoField.uint8("trp.rdmap.version", "RDMAP version", base.DEC, nil, 0xc0),
  queue = ProtoField.uint32("trp.ddp.qn", "Queue number", base.DEC),
  msn = ProtoField.uint32("trp.ddp.msn", "Message sequence number", base.DEC),
  offset = ProtoField.uint32("trp.ddp.mo", "Message offset", base.DEC),
  write_len = ProtoField.uint32("trp.write_length", "Length of the RDMA Write", base.DEC),
}

local CM_KINDS = {
  [1] = "REQ", [2] = "REP", [3] = "RTU", [4] = "REJ", [5] = "DREQ", [6] = "DREP", [7] = "MRA",
  [8] = "COOKIE",
}
local CM_HEADER_LEN = 24
local CM_BODY_LEN = { [1] = 64, [2] = 20, [3] = 0, [4] = 4, [5] = 4, [6] = 0, [7] = 4, [8] = 4 }
local REASONS = {
  [4] = "timeout", [6] = "invalid communication id", [8] = "no listener",
  [28] = "refused by the application",
}
local PORT_SPACES = { [0x0002] = "IPoIB", [0x0106] = "TCP", [0x0111] = "UDP", [0x013f] = "IB" }
local MTUS = { [1] = "256", [2] = "512", [3] = "1024", [4] = "2048", [5] = "4096" }

local c = {
  kind = ProtoField.uint8("trp.cm.kind", "Kind", base.DEC, CM_KINDS),
  length = ProtoField.uint16("trp.cm.length", "Message length", base.DEC),
  local_id = ProtoField.uint32("trp.cm.local_id", "Sender's communication id", base.HEX),
  remote_id = ProtoField.uint32("trp.cm.remote_id", "Receiver's communication id", base.HEX),
  nonce = ProtoField.uint64("trp.cm.nonce", "Nonce", base.HEX),
  slot = ProtoField.uint8("trp.cm.slot", "Sender's slot", base.DEC),
  private_len = ProtoField.uint16("trp.cm.private_length", "Private data length", base.DEC),
  private = ProtoField.bytes("trp.cm.private", "Private data"),
  qpn = ProtoField.uint32("trp.cm.qpn", "QP number", base.HEX),
  psn = ProtoField.uint32("trp.cm.psn", "Initial PSN", base.DEC),
  responder = ProtoField.uint8("trp.cm.responder_resources", "Responder resources", base.DEC),
  depth = ProtoField.uint8("trp.cm.initiator_depth", "Initiator depth", base.DEC),
  srq = ProtoField.bool("trp.cm.srq", "Shared receive queue", 8, nil, 0x01),
  flow = ProtoField.bool("trp.cm.flow_control", "Flow control", 8, nil, 0x02),
  retry = ProtoField.uint8("trp.cm.retry", "Retries", base.DEC, nil, 0x70),
  rnr_retry = ProtoField.uint8("trp.cm.rnr_retry", "RNR retries", base.DEC, nil, 0x07),
  timeout = ProtoField.uint8(
    "trp.cm.ack_timeout", "ACK timeout, 4.096 us * 2^n", base.DEC, nil, 0x1f),
  mtu = ProtoField.uint8("trp.cm.mtu", "Path MTU", base.DEC, MTUS),
  port_space = ProtoField.uint16("trp.cm.port_space", "Port space", base.HEX, PORT_SPACES),
  ece_vendor = ProtoField.uint32("trp.cm.ece.vendor", "ECE vendor", base.HEX),
  ece_options = ProtoField.uint32("trp.cm.ece.options", "ECE options", base.HEX),
  source = ProtoField.ipv6("trp.cm.source", "Source address"),
  target = ProtoField.ipv6("trp.cm.destination", "Destination address"),
  source_port = ProtoField.uint16("trp.cm.source_port", "Source port", base.DEC),
  target_port = ProtoField.uint16("trp.cm.destination_port", "Destination port", base.DEC),
  reason = ProtoField.uint16("trp.cm.reason", "Reason", base.DEC, REASONS),
  cookie = ProtoField.uint32("trp.cm.cookie", "Cookie", base.HEX),
  mra_ms = ProtoField.uint32("trp.cm.mra_ms", "Time asked for, ms", base.DEC),
}

local u = {
  se = ProtoField.bool("trp.flags.se", "Solicited event", 8, nil, 0x08),
  qkey = ProtoField.uint32("trp.ud.qkey", "Q_Key", base.HEX),
  class = ProtoField.uint8("trp.ud.traffic_class", "Traffic class", base.HEX),
  source_qpn = ProtoField.uint24("trp.ud.source_qpn", "Source QP number", base.HEX),
  source_gid = ProtoField.ipv6("trp.ud.source_gid", "Source GID"),
  target_gid = ProtoField.ipv6("trp.ud.destination_gid", "Destination GID"),
  group = ProtoField.bool("trp.ud.group", "To all members of a multicast group"),
  message = ProtoField.bytes("trp.ud.message", "Message"),
}

-- Messages of channels. Their heads are little-endian; the RDMAP headers behind them are not.
local channel = Proto("urdma_channel", "Channel of urdma")

local MESSAGE_HEAD_LEN = 32
local MESSAGE_KIND_END = 16
local MESSAGE_FLAGS_END = 0x80
local SEND, WRITE, IMMEDIATE, READ_REQUEST, READ_RESPONSE = 1, 2, 3, 4, 5
local ATOMIC_REQUEST, ATOMIC_RESPONSE = 6, 7
local TERMINATE, NOT_READY, CHANNEL_RESET, FIN, WRITE_IMMEDIATE = 8, 9, 10, 11, 12
local MESSAGES = {
  [1] = "SEND", [2] = "WRITE", [3] = "IMMEDIATE", [4] = "READ_REQUEST", [5] = "READ_RESPONSE",
  [6] = "ATOMIC_REQUEST", [7] = "ATOMIC_RESPONSE", [8] = "TERMINATE", [9] = "NOT_READY",
  [10] = "RESET", [11] = "FIN", [12] = "WRITE_IMMEDIATE",
}
local CHANNEL_RESET_REASONS = {
  [0] = "no such queue pair", [1] = "queue pair in ERR", [2] = "queue pair not connected",
}
local ATOMICS = { [0] = "FetchAdd", [2] = "CmpSwap", [15] = "Write" }

local m = {
  kind = ProtoField.uint8("urdma_channel.kind", "Kind", base.DEC, MESSAGES),
  flags = ProtoField.uint8("urdma_channel.flags", "Flags", base.HEX),
  last = ProtoField.bool("urdma_channel.flags.last", "Last segment of the message", 8, nil, 0x01),
  se = ProtoField.bool("urdma_channel.flags.solicited", "Solicited event", 8, nil, 0x02),
  imm = ProtoField.bool("urdma_channel.flags.immediate", "Has immediate data", 8, nil, 0x04),
  inv = ProtoField.bool("urdma_channel.flags.invalidate", "Invalidates an STag", 8, nil, 0x08),
  epoch = ProtoField.bool("urdma_channel.flags.epoch", "Epoch of requests", 8, nil, 0x10),
  unreliable = ProtoField.bool(
    "urdma_channel.flags.unreliable", "Unreliable connection", 8, nil, 0x20),
  start = ProtoField.bool("urdma_channel.flags.start", "Requests begin here", 8, nil, 0x40),
  target_index = ProtoField.uint16(
    "urdma_channel.destination", "Destination QP index", base.DEC),
  source_index = ProtoField.uint16("urdma_channel.source", "Source QP index", base.DEC),
  target_qpn = ProtoField.uint24(
    "urdma_channel.destination_qpn", "Destination QP number", base.HEX),
  source_qpn = ProtoField.uint24("urdma_channel.source_qpn", "Source QP number", base.HEX),
  qpn = ProtoField.uint24("urdma_channel.qpn", "QP number of either end", base.HEX),
  id = ProtoField.uint32("urdma_channel.id", "Connection id", base.HEX),
  stag = ProtoField.uint32("urdma_channel.stag", "STag", base.HEX),
  msn = ProtoField.uint32("urdma_channel.msn", "Message number", base.DEC),
  to = ProtoField.uint64("urdma_channel.tagged_offset", "Tagged offset", base.HEX),
  mo = ProtoField.uint64("urdma_channel.message_offset", "Message offset", base.DEC),
  timer = ProtoField.uint64("urdma_channel.rnr_timer", "RNR timer code", base.DEC),
  rnr_us = ProtoField.uint32("urdma_channel.rnr_us", "Wait, us", base.DEC),
  reason = ProtoField.uint64("urdma_channel.reset_reason", "Reason", base.DEC),
  immediate = ProtoField.uint32("urdma_channel.immediate", "Immediate data", base.HEX),
  inv_stag = ProtoField.uint32("urdma_channel.invalidated_stag", "STag to invalidate", base.HEX),
  shared_queue = ProtoField.uint32(
    "urdma_channel.shared_queue", "Shared receive queue", base.HEX),
  len = ProtoField.uint32("urdma_channel.payload_length", "Length of the payload", base.DEC),
  payload = ProtoField.bytes("urdma_channel.payload", "Payload"),
  sink_stag = ProtoField.uint32("urdma_channel.read.sink_stag", "Sink STag", base.HEX),
  sink_to = ProtoField.uint64("urdma_channel.read.sink_offset", "Sink tagged offset", base.HEX),
  size = ProtoField.uint32("urdma_channel.read.size", "Octets to read", base.DEC),
  source_stag = ProtoField.uint32("urdma_channel.read.source_stag", "Source STag", base.HEX),
  source_to = ProtoField.uint64(
    "urdma_channel.read.source_offset", "Source tagged offset", base.HEX),
  atomic = ProtoField.uint32(
    "urdma_channel.atomic.operation", "Operation", base.DEC, ATOMICS, 0x0f),
  request_id = ProtoField.uint32("urdma_channel.atomic.request", "Request", base.DEC),
  atomic_stag = ProtoField.uint32("urdma_channel.atomic.stag", "STag", base.HEX),
  atomic_to = ProtoField.uint64("urdma_channel.atomic.offset", "Tagged offset", base.HEX),
  data = ProtoField.uint64("urdma_channel.atomic.data", "Data to add or swap", base.HEX),
  data_mask = ProtoField.uint64("urdma_channel.atomic.data_mask", "Its mask", base.HEX),
  compare = ProtoField.uint64("urdma_channel.atomic.compare", "Data to compare", base.HEX),
  compare_mask = ProtoField.uint64("urdma_channel.atomic.compare_mask", "Its mask", base.HEX),
  original = ProtoField.uint64("urdma_channel.atomic.original", "Original value", base.HEX),
  write_len = ProtoField.uint32(
    "urdma_channel.write_length", "Length of the RDMA Write", base.DEC),
  layer = ProtoField.uint8("urdma_channel.terminate.layer", "Layer", base.DEC, nil, 0xf0),
  etype = ProtoField.uint8("urdma_channel.terminate.type", "Error type", base.DEC, nil, 0x0f),
  code = ProtoField.uint8("urdma_channel.terminate.code", "Error code", base.HEX),
}

channel.fields = {}
for _, field in pairs(m) do
  table.insert(channel.fields, field)
end

trp.fields = {}
for _, group in ipairs({ f, c, u }) do
  for _, field in pairs(group) do
    table.insert(trp.fields, field)
  end
end

local e = {
  broken = ProtoExpert.new(
    "trp.broken", "Not a valid TRP packet", expert.group.MALFORMED, expert.severity.ERROR),
  trailing = ProtoExpert.new(
    "trp.trailing", "Octets after a packet without a segment", expert.group.PROTOCOL,
    expert.severity.WARN),
}
trp.experts = { e.broken, e.trailing }

local ddp_rdmap = Dissector.get("iwarp_ddp_rdmap")

local function broken(tree, text)
  tree:add_proto_expert_info(e.broken, text)
end

-- The PSNs of a SACK as ranges: "7, 9-12".
local function sacked_psns(bitmap, base)
  local ranges, first = {}, nil
  local bits = bitmap:len() * 8
  for bit = 0, bits do
    local set = bit < bits and bitmap:bitfield(bit, 1) == 1
    if set and not first then
      first = bit
    elseif not set and first then
      local from, to = (base + first) % 0x1000000, (base + bit - 1) % 0x1000000
      table.insert(ranges, from == to and tostring(from) or (from .. "-" .. to))
      first = nil
    end
  end
  return table.concat(ranges, ", ")
end

local function dissect_extension(tvb, tree, ack)
  local kind, len = tvb(0, 1):uint(), tvb:len()
  local t = tree:add(trp, tvb(), "Extension: " .. (KINDS[kind] or ("kind " .. kind)))
  t:add(f.kind, tvb(0, 1))
  t:add(f.length, tvb(1, 1))
  if kind == 1 and len > 4 then
    t:add(f.sack, tvb(4))
    t:add(f.sacked, tvb(4), sacked_psns(tvb(4), ack + 1 + 32 * tvb(2, 2):uint())):set_generated()
  elseif kind == 2 and len == 12 then
    t:add(f.ts_value, tvb(4, 4))
    t:add(f.ts_echo, tvb(8, 4))
  elseif kind == 3 then
    t:add(f.rnr_timer, tvb(2, 2))
    t:add(f.rnr_us, tvb(2, 2), RNR_US[tvb(3, 1):uint() % 32]):set_generated()
  elseif kind == 4 and len == 8 then
    t:add(f.shared_queue, tvb(4, 4))
  elseif kind == 5 and len == 32 then
    t:add(f.dc_timeout, tvb(2, 1))
    t:add(f.dc_retries, tvb(3, 1))
    t:add(f.dc_initiator, tvb(5, 3))
    t:add(f.dc_epoch, tvb(8, 8))
    t:add(f.dc_key, tvb(16, 8))
    t:add(f.dc_token, tvb(24, 4))
    t:add(f.dc_confirmed, tvb(29, 3))
  elseif kind == 6 and len == 24 then
    t:add(f.dc_epoch, tvb(4, 8))
    t:add(f.dc_floor, tvb(12, 8))
    t:add(f.dc_token, tvb(20, 4))
  elseif kind >= 1 and kind <= 6 then
    broken(t, "wrong length for this kind")
  else
    t:add(f.argument, tvb(2, 2))
    if len > 4 then
      t:add(f.body, tvb(4))
    end
  end
end

local function dissect_extensions(tvb, tree, ack)
  local at = 0
  while at < tvb:len() do
    local len = 4 + 4 * tvb(at + 1, 1):uint()
    if at + len > tvb:len() then
      broken(tree, "an extension ends outside the header")
      return
    end
    dissect_extension(tvb(at, len):tvb(), tree, ack)
    at = at + len
  end
end

local function dissect_immediate_data(tvb, tree)
  if tvb:len() < 26 then
    broken(tree, "Immediate Data cut short")
    return
  end
  local t = tree:add(trp, tvb(), "iWARP Immediate Data (RFC 7306)")
  t:add(f.last, tvb(0, 1))
  t:add(f.dv, tvb(0, 1))
  t:add(f.rv, tvb(1, 1))
  t:add(f.queue, tvb(6, 4))
  t:add(f.msn, tvb(10, 4))
  t:add(f.offset, tvb(14, 4))
  t:add(f.immediate, tvb(18, 4))
  t:add(f.write_len, tvb(22, 4))
end

-- Returns the name of the opcode.
local function dissect_segment(tvb, pinfo, tree, trp_tree, has_immediate)
  if tvb:len() < 14 then
    broken(trp_tree, "DDP segment cut short")
    return "?"
  end
  local tagged, opcode = tvb(0, 1):bitfield(0, 1) == 1, tvb(1, 1):bitfield(4, 4)
  trp_tree:add(f.opcode, tvb(1, 1)):set_generated()
  if opcode == 8 or opcode == 9 then
    dissect_immediate_data(tvb, tree)
  else
    if has_immediate and not tagged then
      trp_tree:add(f.immediate, tvb(2, 4))
    end
    -- A segment that ends within its headers raises an error there.
    if not pcall(ddp_rdmap.call, ddp_rdmap, tvb, pinfo, tree) then
      broken(trp_tree, "DDP segment cut short")
    end
  end
  return OPCODES[opcode] or ("opcode " .. opcode)
end

-- The segments of a train: offset, length and flag IMM of each; nil if its table is inconsistent
-- with it.
local function train_pieces(tvb, at)
  local pieces, ended = {}, false
  if at + 2 * TRAIN_SEGMENTS_MAX > tvb:len() then
    return nil
  end
  local from = at + 2 * TRAIN_SEGMENTS_MAX
  for i = 0, TRAIN_SEGMENTS_MAX - 1 do
    local entry = tvb(at + 2 * i, 2)
    local len = entry:bitfield(1, 15)
    if entry:uint() == 0 then
      ended = true
    elseif ended or len < TRAIN_SEGMENT_MIN then
      return nil
    else
      table.insert(pieces, { at = from, len = len, entry = entry, imm = entry:bitfield(0, 1) == 1 })
      from = from + len
    end
  end
  return #pieces > 0 and from == tvb:len() and pieces or nil
end

-- Returns the text for the summary.
local function dissect_train(tvb, at, psn, pinfo, tree, trp_tree)
  local pieces = train_pieces(tvb, at)
  if not pieces then
    broken(trp_tree, "the table of the train does not agree with the packet")
    return "TRAIN"
  end
  local opcodes = {}
  for i, piece in ipairs(pieces) do
    local segment = tvb(piece.at, piece.len)
    local t = trp_tree:add(trp, piece.entry, "Segment " .. i)
    t:add(f.entry_imm, piece.entry)
    t:add(f.entry_len, piece.entry)
    t:add(f.entry_psn, piece.entry, (psn + i - 1) % 0x1000000):set_generated()
    table.insert(opcodes, dissect_segment(segment:tvb(), pinfo, tree, t, piece.imm))
  end
  return "TRAIN of " .. #pieces .. ": " .. table.concat(opcodes, ", ")
end

local function add_qp(tvb, t)
  t:add(c.qpn, tvb(0, 4))
  t:add(c.psn, tvb(4, 4))
  t:add(c.responder, tvb(8, 1))
  t:add(c.depth, tvb(9, 1))
  t:add(c.srq, tvb(10, 1))
  t:add(c.flow, tvb(10, 1))
  t:add(c.rnr_retry, tvb(11, 1))
end

local CM_BODIES = {
  [1] = function(tvb, t)
    add_qp(tvb, t)
    t:add(c.retry, tvb(11, 1))
    t:add(c.timeout, tvb(12, 1))
    t:add(c.mtu, tvb(13, 1))
    t:add(c.port_space, tvb(14, 2))
    t:add(c.ece_vendor, tvb(16, 4))
    t:add(c.ece_options, tvb(20, 4))
    t:add(c.source, tvb(24, 16))
    t:add(c.target, tvb(40, 16))
    t:add(c.source_port, tvb(56, 2))
    t:add(c.target_port, tvb(58, 2))
    t:add(c.cookie, tvb(60, 4))
  end,
  [2] = function(tvb, t)
    add_qp(tvb, t)
    t:add(c.ece_vendor, tvb(12, 4))
    t:add(c.ece_options, tvb(16, 4))
  end,
  [4] = function(tvb, t) t:add(c.reason, tvb(0, 2)) end,
  [5] = function(tvb, t) t:add(c.qpn, tvb(0, 4)) end,
  [7] = function(tvb, t) t:add(c.mra_ms, tvb(0, 4)) end,
  [8] = function(tvb, t) t:add(c.cookie, tvb(0, 4)) end,
}

local function dissect_cm(tvb, pinfo, t)
  if tvb:len() < CM_HEADER_LEN then
    broken(t, "connection management cut short")
    return
  end
  local kind, private_len = tvb(1, 1):uint(), tvb(22, 2):uint()
  t:add(c.kind, tvb(1, 1))
  t:add(c.length, tvb(2, 2))
  t:add(c.local_id, tvb(4, 4))
  t:add(c.remote_id, tvb(8, 4))
  t:add(c.nonce, tvb(12, 8))
  t:add(c.slot, tvb(20, 1))
  t:add(c.private_len, tvb(22, 2))
  local body_len = CM_BODY_LEN[kind]
  if not body_len or tvb(2, 2):uint() ~= tvb:len()
    or CM_HEADER_LEN + body_len + private_len ~= tvb:len() then
    broken(t, "unknown kind, or lengths that do not agree")
    return
  end
  if CM_BODIES[kind] then
    CM_BODIES[kind](tvb(CM_HEADER_LEN, body_len):tvb(), t)
  end
  if private_len > 0 then
    t:add(c.private, tvb(CM_HEADER_LEN + body_len, private_len))
  end
  t:append_text(", CM " .. CM_KINDS[kind])
  pinfo.cols.info = "CM " .. CM_KINDS[kind]
end

local function add_destination(tvb, pinfo, t)
  t:add(f.index, tvb(2, 2))
  if pinfo.dst_port >= PORT_BASE and pinfo.dst_port <= PORT_LAST then
    local slot = pinfo.dst_port - PORT_BASE
    t:add(f.slot, slot):set_generated()
    t:add(f.qpn, tvb(2, 2), slot * 0x10000 + tvb(2, 2):uint()):set_generated()
  end
  if pinfo.src_port >= 0xc000 then
    t:add(f.source_slot, pinfo.src_port % 256):set_generated()
  end
end

-- Whether a GID is an IPv6 multicast address, or an IPv4-mapped one.
local function is_group(gid)
  local is_v4 = gid(0, 8):uint64() == UInt64(0) and gid(8, 4):uint() == 0xffff
  return gid(0, 1):uint() == 0xff or (is_v4 and gid(12, 1):bitfield(0, 4) == 0xe)
end

local function dissect_datagram(tvb, pinfo, t)
  if tvb:len() < DATAGRAM_HEADER_LEN then
    broken(t, "datagram cut short")
    return
  end
  local flags = t:add(f.flags, tvb(1, 1))
  flags:add(f.imm, tvb(1, 1))
  flags:add(u.se, tvb(1, 1))
  local to_group = is_group(tvb(32, 16))
  if to_group then
    t:add(f.index, tvb(2, 2))
    t:add(u.group, tvb(32, 16), true):set_generated()
  else
    add_destination(tvb, pinfo, t)
  end
  t:add(u.qkey, tvb(4, 4))
  t:add(u.class, tvb(8, 1))
  t:add(u.source_qpn, tvb(9, 3))
  if tvb(1, 1):bitfield(6, 1) == 1 then
    t:add(f.immediate, tvb(12, 4))
  end
  t:add(u.source_gid, tvb(16, 16))
  t:add(u.target_gid, tvb(32, 16))
  if tvb:len() > DATAGRAM_HEADER_LEN then
    t:add(u.message, tvb(DATAGRAM_HEADER_LEN))
  end
  local target = to_group and "a group" or "QP " .. tvb(2, 2):uint()
  local summary = string.format(
    "DATAGRAM, %s, from 0x%06x, %d octets", target, tvb(9, 3):uint(),
    tvb:len() - DATAGRAM_HEADER_LEN)
  t:append_text(", " .. summary)
  pinfo.cols.info = summary
end

local function add_header(tvb, pinfo, t, kind)
  local flags = t:add(f.flags, tvb(1, 1))
  flags:add(f.ar, tvb(1, 1))
  flags:add(f.imm, tvb(1, 1))
  flags:add(f.ece, tvb(1, 1))
  flags:add(f.ep, tvb(1, 1))
  flags:add(f.tr, tvb(1, 1))
  add_destination(tvb, pinfo, t)
  t:add(f.id, tvb(4, 4))
  if kind == RESET then
    t:add(f.reason, tvb(8, 1))
    t:add(f.acknowledges, tvb(8, 1))
  else
    t:add(f.window, tvb(8, 1)):append_text(" (" .. 256 * tvb(8, 1):uint() .. " packets)")
  end
  t:add(kind == RESET and f.unknown_index or f.psn, tvb(9, 3))
  t:add(f.words, tvb(12, 1))
  t:add(f.ack, tvb(13, 3))
end

-- The queue pairs of a message: those of the slots that its ports name.
local function add_queue_pairs(tvb, pinfo, t)
  local ends = {
    { m.target_index, m.target_qpn, tvb(2, 2), pinfo.dst_port },
    { m.source_index, m.source_qpn, tvb(4, 2), pinfo.src_port },
  }
  local numbers = {}
  for i, side in ipairs(ends) do
    local index, qpn, place, port = side[1], side[2], side[3], side[4]
    t:add_le(index, place)
    local number = (port - PORT_BASE) % 256 * 0x10000 + place:le_uint()
    t:add(qpn, place, number):set_generated()
    t:add(m.qpn, place, number):set_generated():set_hidden(true)
    numbers[i] = number
  end
  return string.format("0x%06x > 0x%06x", numbers[2], numbers[1])
end

local function at_offset(tvb, stag, to)
  return string.format("STag 0x%08x + 0x%s", stag, tvb(to, 8):uint64():tohex():gsub("^0+(.)", "%1"))
end

-- What follows the head in messages without payload: length and decoder, which returns a text for
-- the summary.
local MESSAGE_BODIES = {
  [IMMEDIATE] = { 8, function(tvb, t)
    t:add(m.immediate, tvb(0, 4))
    t:add(m.write_len, tvb(4, 4))
    return string.format("immediate 0x%x", tvb(0, 4):uint())
  end },
  [READ_REQUEST] = { 28, function(tvb, t)
    t:add(m.sink_stag, tvb(0, 4))
    t:add(m.sink_to, tvb(4, 8))
    t:add(m.size, tvb(12, 4))
    t:add(m.source_stag, tvb(16, 4))
    t:add(m.source_to, tvb(20, 8))
    return tvb(12, 4):uint() .. " octets from " .. at_offset(tvb, tvb(16, 4):uint(), 20)
  end },
  [ATOMIC_REQUEST] = { 52, function(tvb, t)
    t:add(m.atomic, tvb(0, 4))
    t:add(m.request_id, tvb(4, 4))
    t:add(m.atomic_stag, tvb(8, 4))
    t:add(m.atomic_to, tvb(12, 8))
    t:add(m.data, tvb(20, 8))
    t:add(m.data_mask, tvb(28, 8))
    t:add(m.compare, tvb(36, 8))
    t:add(m.compare_mask, tvb(44, 8))
    local name = ATOMICS[tvb(3, 1):bitfield(4, 4)] or "unknown operation"
    return name .. " at " .. at_offset(tvb, tvb(8, 4):uint(), 12)
  end },
  [ATOMIC_RESPONSE] = { 12, function(tvb, t)
    t:add(m.request_id, tvb(0, 4))
    t:add(m.original, tvb(4, 8))
    return "request " .. tvb(0, 4):uint()
  end },
}

-- The `len` octets behind a head, an RDMAP header or the payload; returns a text for the summary.
local function dissect_message_body(tvb, len, t, kind)
  local fixed = MESSAGE_BODIES[kind]
  if kind == SEND or kind == WRITE or kind == WRITE_IMMEDIATE or kind == READ_RESPONSE then
    t:add(m.len, len):set_generated()
    if len > 0 then
      t:add(m.payload, tvb())
    end
    return len .. " octets"
  elseif fixed then
    if len ~= fixed[1] then
      broken(t, "wrong length for this kind")
      return "?"
    end
    return fixed[2](tvb, t)
  elseif kind == TERMINATE then
    if len < 4 then
      broken(t, "Terminate cut short")
      return "?"
    end
    t:add(m.layer, tvb(0, 1))
    t:add(m.etype, tvb(0, 1))
    t:add(m.code, tvb(1, 1))
    return string.format(
      "%d.%d.%02x", tvb(0, 1):bitfield(0, 4), tvb(0, 1):bitfield(4, 4), tvb(1, 1):uint())
  elseif len > 0 then
    t:add_proto_expert_info(e.trailing)
  end
  return nil
end

-- Message number or STag, and offset; returns texts for the summary.
local function add_place(tvb, t, kind)
  local number, offset = tvb(12, 4), tvb(16, 8)
  if kind == WRITE or kind == WRITE_IMMEDIATE or kind == READ_RESPONSE then
    t:add_le(m.stag, number)
    t:add_le(m.to, offset)
    local hex = offset:le_uint64():tohex():gsub("^0+(.)", "%1")
    return string.format("STag 0x%08x + 0x%s", number:le_uint(), hex)
  elseif kind == CHANNEL_RESET then
    t:add_le(m.reason, offset)
    return CHANNEL_RESET_REASONS[offset:le_uint64():tonumber()] or "unknown reason"
  elseif kind == NOT_READY then
    t:add_le(m.msn, number)
    t:add_le(m.timer, offset)
    local us = RNR_US[offset:le_uint64():tonumber() % 32]
    t:add(m.rnr_us, offset, us):set_generated()
    return "message " .. number:le_uint() .. " in " .. us .. " us"
  elseif kind == FIN then
    return nil
  end
  t:add_le(m.msn, number)
  t:add_le(m.mo, offset)
  local text = "message " .. number:le_uint()
  local place = offset:le_uint64():tonumber()
  return place > 0 and text .. " + " .. place or text
end

-- Immediate data or the STag to invalidate; returns a text for the summary.
local function add_ulp(tvb, t, kind, flags)
  local ulp = tvb(24, 4)
  if kind ~= SEND and kind ~= WRITE_IMMEDIATE or bit.band(flags, 0x0c) == 0 then
    return nil
  elseif bit.band(flags, 0x08) ~= 0 then
    t:add_le(m.inv_stag, ulp)
    return string.format("invalidates 0x%08x", ulp:le_uint())
  end
  t:add_le(m.immediate, ulp)
  return string.format("immediate 0x%x", ulp:le_uint())
end

local function dissect_message(tvb, pinfo, root)
  pinfo.cols.protocol = "CHANNEL"
  local t = root:add(channel, tvb())
  local kind = tvb(0, 1):uint()
  t:add(m.kind, tvb(0, 1))
  if not MESSAGES[kind] or tvb:len() < MESSAGE_HEAD_LEN then
    broken(t, "unknown kind of message, or its head is cut short")
    pinfo.cols.info = "Not a valid message"
    return
  end
  local flags = tvb(1, 1):uint()
  local flag_tree = t:add(m.flags, tvb(1, 1))
  for _, flag in ipairs({ m.last, m.se, m.imm, m.inv, m.epoch, m.unreliable, m.start }) do
    flag_tree:add(flag, tvb(1, 1))
  end
  if flags >= MESSAGE_FLAGS_END then
    broken(t, "unknown flag")
  end
  local parts = { MESSAGES[kind] .. " " .. add_queue_pairs(tvb, pinfo, t) }
  local function say(text)
    if text then
      table.insert(parts, text)
    end
  end
  t:add_le(m.id, tvb(8, 4))
  say(add_place(tvb, t, kind))
  say(add_ulp(tvb, t, kind, flags))
  if kind == WRITE_IMMEDIATE then
    t:add_le(m.msn, tvb(28, 4))
    say("message " .. tvb(28, 4):le_uint())
  elseif tvb(28, 4):le_uint() ~= 0 then
    t:add_le(m.shared_queue, tvb(28, 4))
  end
  local len = tvb:len() - MESSAGE_HEAD_LEN
  local body = len > 0 and tvb(MESSAGE_HEAD_LEN):tvb() or nil
  say(dissect_message_body(body, len, t, kind))
  if (kind <= ATOMIC_RESPONSE or kind == WRITE_IMMEDIATE) and bit.band(flags, 0x01) ~= 0 then
    say("last")
  end
  local summary = table.concat(parts, ", ")
  t:append_text(", " .. summary)
  pinfo.cols.info = summary
end

function trp.dissector(tvb, pinfo, root)
  if tvb:len() == 0 then
    return 0
  elseif tvb(0, 1):uint() < MESSAGE_KIND_END then
    dissect_message(tvb, pinfo, root)
    return tvb:len()
  end
  pinfo.cols.protocol = "TRP"
  local t = root:add(trp, tvb())
  local version, kind = tvb(0, 1):bitfield(0, 4), tvb(0, 1):bitfield(4, 4)
  t:add(f.version, tvb(0, 1))
  if version ~= VERSION or not TYPES[kind] then
    broken(t, "unknown version or type")
    return tvb:len()
  end
  t:add(f.type, tvb(0, 1))
  if kind == CM then
    dissect_cm(tvb, pinfo, t)
    return tvb:len()
  elseif kind == DATAGRAM then
    dissect_datagram(tvb, pinfo, t)
    return tvb:len()
  end
  local words = tvb:len() >= HEADER_LEN and tvb(12, 1):uint() or EXTENSION_WORDS_MAX + 1
  local header_len = HEADER_LEN + 4 * words
  if words > EXTENSION_WORDS_MAX or header_len > tvb:len() then
    broken(t, "header or extensions cut short")
    return tvb:len()
  end

  add_header(tvb, pinfo, t, kind)
  local psn, ack = tvb(9, 3):uint(), tvb(13, 3):uint()
  if words > 0 then
    dissect_extensions(tvb(HEADER_LEN, 4 * words):tvb(), t, ack)
  end
  t:set_len(header_len)
  local name = TYPES[kind]
  if kind == DATA or kind == UDATA then
    if tvb:len() == header_len then
      broken(t, name .. " without a segment")
    else
      local has_immediate = tvb(1, 1):bitfield(6, 1) == 1
      name = name .. " " .. dissect_segment(tvb(header_len):tvb(), pinfo, root, t, has_immediate)
    end
  elseif kind == TRAIN then
    name = dissect_train(tvb, header_len, psn, pinfo, root, t)
  elseif tvb:len() > header_len then
    t:add_proto_expert_info(e.trailing)
  end

  local summary = string.format(
    "QP %d, id 0x%08x, PSN %d, ACK %d", tvb(2, 2):uint(), tvb(4, 4):uint(), psn, ack)
  if kind == RESET then
    local reason = RESET_REASONS[tvb(8, 1):bitfield(1, 7)] or RESET_REASONS[0]
    summary = string.format("id 0x%08x, " .. reason, tvb(4, 4):uint(), psn)
    if tvb(8, 1):bitfield(0, 1) == 1 then
      summary = summary .. ", ACK " .. ack
    end
  elseif kind == RNR then
    summary = summary .. ", not ready"
  end
  t:append_text(", " .. name .. ", " .. summary)
  pinfo.cols.protocol = "TRP"
  pinfo.cols.info = name .. ", " .. summary
  return tvb:len()
end

DissectorTable.get("udp.port"):add(PORT_BASE .. "-" .. PORT_LAST, trp)
