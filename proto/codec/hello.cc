// Who speaks, and what goes between a broker and a peer beside stages and tensors.
#include <algorithm>

#include "proto/codec/wire.h"

namespace weft::proto {

namespace {

// What a later version counts beside these, nobody here asks for.
std::vector<dag::Arithmetic> known_arithmetic(const wire::DeviceReport& from) {
  std::vector<dag::Arithmetic> known;
  for (const dag::Arithmetic each : dag::kArithmetics)
    if (const auto& said = from.arithmetic();
        std::find(said.begin(), said.end(), put_enum<int>(each)) != said.end())
      known.push_back(each);
  if (known.empty()) known.push_back(dag::Arithmetic::F32);
  return known;
}

}  // namespace

void put(const DeviceReport& from, wire::DeviceReport& to) {
  to.set_device(from.device);
  to.set_threads(from.threads);
  to.set_stages(from.stages);
  to.set_op_set(from.op_set);
  put(from.rates, *to.mutable_rates());
  to.set_memory(static_cast<uint64_t>(from.memory.value));
  to.set_host_memory(static_cast<uint64_t>(from.host_memory.value));
  to.set_fingerprint(from.fingerprint);
  to.set_fuse_elementwise(from.traits.fuse_elementwise);
  to.set_fuse_products(from.traits.fuse_products);
  to.set_convolution_layout(put_enum<wire::Layout>(from.traits.convolution_layout));
  to.set_region(from.region);
  to.set_owner(from.owner);
  put_plain(from.addresses, *to.mutable_addresses());
  for (const dag::Arithmetic each : from.arithmetic) to.add_arithmetic(put_enum<wire::Arithmetic>(each));
}
Status get(const wire::DeviceReport& from, DeviceReport& to) {
  Reader read("DeviceReport");
  read.name(from.device(), to.device, "device");
  to.threads = from.threads();
  read.require(to.threads <= kThreadsMax, "threads", "more than 1024");
  to.stages = std::max(from.stages(), 1u);
  to.op_set = std::max(from.op_set(), dag::kFirstOpSet);
  read.require(to.stages <= kStagesHeldMax, "stages", "more than 16");
  read.part(from.rates(), to.rates, "rates");
  read.bytes(from.memory(), to.memory, "memory");
  read.bytes(from.host_memory(), to.host_memory, "host_memory");
  read.text(from.fingerprint(), to.fingerprint, kSymbolMax, "fingerprint");
  to.traits.fuse_elementwise = from.fuse_elementwise();
  to.traits.fuse_products = from.fuse_products();
  read.enumerator(from.convolution_layout(), to.traits.convolution_layout, dag::Layout::Blocked16,
                  "convolution_layout");
  read.name(from.region(), to.region, "region");
  read.name(from.owner(), to.owner, "owner");
  read.names(from.addresses(), to.addresses, kAddressesMax, "addresses");
  read.require(from.arithmetic_size() <= kArithmeticMax, "arithmetic", "more than 64");
  to.arithmetic = known_arithmetic(from);
  return read.status();
}

void put(const Hello& from, wire::Hello& to) {
  to.set_major(from.major);
  to.set_minor(from.minor);
  to.set_software(put_text(from.software, kNameMax));
  to.set_role(put_enum<wire::Role>(from.role, Role::Peer));
  if (from.token) {
    to.mutable_token()->set_id(from.token->id);
    to.mutable_token()->set_secret(put_bytes(from.token->secret));
  }
  to.set_name(from.name);
  if (from.device) put(*from.device, *to.mutable_device());
  to.set_instance(from.instance);
  for (const StageHeld& held : from.holding) {
    wire::StageHeld& each = *to.add_holding();
    each.set_run(held.run);
    each.set_plan_version(held.plan_version);
    put_seat(held.seat, each);
  }
}
Status get(const wire::Hello& from, Hello& to) {
  Reader read("Hello");
  to.major = from.major();
  to.minor = from.minor();
  read.name(from.software(), to.software, "software");
  // Whatever else another version says: this one only has to name it.
  if (to.major != kProtocolMajor) return read.status();
  read.enumerator(from.role(), to.role, Role::Admin, "role", Role::Peer);
  if (from.has_token()) {
    to.token.emplace().id = from.token().id();
    read.secret(from.token().secret(), to.token->secret, "token.secret");
  }
  read.name(from.name(), to.name, "name");
  if (from.has_device()) read.part(from.device(), to.device.emplace(), "device");
  to.instance = from.instance();
  read.require(static_cast<uint32_t>(from.holding_size()) <= kStagesHeldMax, "holding", "more than 16");
  for (const wire::StageHeld& each : from.holding()) {
    StageHeld& held = to.holding.emplace_back(StageHeld{each.run(), each.plan_version(), {}});
    read.seat(each.stage(), each.replica(), held.seat, "holding.stage");
  }
  return read.status();
}

void put(const HelloAck& from, wire::HelloAck& to) {
  to.set_major(from.major);
  to.set_minor(from.minor);
  to.set_software(put_text(from.software, kNameMax));
  to.set_name(from.name);
  to.set_heartbeat_nanoseconds(static_cast<uint64_t>(from.heartbeat_interval.count()));
  to.set_lease_nanoseconds(static_cast<uint64_t>(from.lease.count()));
  to.set_unix_ms(from.unix_ms);
  to.set_address(put_text(from.address, kNameMax));
}
Status get(const wire::HelloAck& from, HelloAck& to) {
  Reader read("HelloAck");
  to.major = from.major();
  to.minor = from.minor();
  read.name(from.software(), to.software, "software");
  if (to.major != kProtocolMajor) return read.status();
  read.name(from.name(), to.name, "name");
  read.duration(from.heartbeat_nanoseconds(), to.heartbeat_interval, "heartbeat_nanoseconds");
  read.duration(from.lease_nanoseconds(), to.lease, "lease_nanoseconds");
  to.unix_ms = from.unix_ms();
  read.name(from.address(), to.address, "address");
  return read.status();
}

void put(const Refusal& from, wire::Refusal& to) {
  to.set_code(put_enum<wire::ErrorCode>(from.code));
  to.set_message(put_text(from.message));
  to.set_retry(from.retry);
}
Status get(const wire::Refusal& from, Refusal& to) {
  Reader read("Refusal");
  read.error_code(from.code(), to.code, "code");
  read.message(from.message(), to.message, "message");
  to.retry = from.retry();
  return read.status();
}

// ---- broker to peer

void put(const Command& from, wire::Command& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_kind(put_enum<wire::CommandKind>(from.kind));
  to.set_step(from.step);
  to.set_microbatches(from.microbatches);
  to.set_first_microbatch(from.first_microbatch);
  to.set_sequence(from.sequence);
  to.set_committed(from.committed);
  to.set_settled(from.settled);
  to.set_keep_from(from.keep_from);
  to.set_direct(from.direct);
  to.set_stays(from.stays);
  to.set_with_followers(from.with_followers);
  put_plain(from.left_out.replicas, *to.mutable_left_out());
  to.set_mean_owner(from.left_out.owner);
  to.set_agreement(from.check.agreement);
  to.set_tensor(from.check.tensor);
  to.set_piece(from.check.piece);
}
Status get(const wire::Command& from, Command& to) {
  Reader read("Command");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.enumerator(from.kind(), to.kind, CommandKind::CheckMean, "kind");
  to.step = from.step();
  to.microbatches = from.microbatches();
  to.first_microbatch = from.first_microbatch();
  to.sequence = from.sequence();
  to.committed = from.committed();
  to.settled = from.settled();
  to.keep_from = from.keep_from();
  to.direct = from.direct();
  to.stays = from.stays();
  to.with_followers = from.with_followers();
  read.numbers(from.left_out(), to.left_out.replicas, kReplicasMax, "left_out");
  to.left_out.owner = from.mean_owner();
  read.require(is_valid(to.left_out), "left_out", "not ascending, or with who takes their place");
  to.check = {from.agreement(), from.tensor(), from.piece()};
  return read.status();
}

void put(const GradientNorm& from, wire::GradientNorm& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_norm(from.norm);
  to.set_skip(from.skip);
}
Status get(const wire::GradientNorm& from, GradientNorm& to) {
  to = {from.run(), from.plan_version(), from.step(), from.norm(), from.skip()};
  return {};
}

void put(const ReleaseStage& from, wire::ReleaseStage& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_reason(put_text(from.reason));
}
Status get(const wire::ReleaseStage& from, ReleaseStage& to) {
  Reader read("ReleaseStage");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.message(from.reason(), to.reason, "reason");
  return read.status();
}

void put(const RelayInvitation& from, wire::RelayInvitation& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_ticket(put_bytes(from.ticket));
}
Status get(const wire::RelayInvitation& from, RelayInvitation& to) {
  Reader read("RelayInvitation");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.secret(from.ticket(), to.ticket, "ticket");
  return read.status();
}

void put(const ResumeStage& from, wire::ResumeStage& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
}
Status get(const wire::ResumeStage& from, ResumeStage& to) {
  to = {from.run(), from.plan_version()};
  return {};
}

void put(const StandBy& from, wire::StandBy& to) {
  to.set_run(from.run);
  to.set_step(from.step);
  put_list(from.tensors, *to.mutable_tensors());
  to.set_rate(from.rate);
  put_list(from.sources, *to.mutable_sources());
  to.set_list(from.list);
}
Status get(const wire::StandBy& from, StandBy& to) {
  Reader read("StandBy");
  to.run = from.run();
  to.step = from.step();
  read.list(from.tensors(), to.tensors, kListMax, "tensors");
  to.rate = from.rate();
  read.list(from.sources(), to.sources, kStagesMax, "sources");
  to.list = from.list();
  WEFT_TRY_STATUS(read.status());
  return check_sources(to.sources, to.tensors.size());
}

void put(const HeartbeatAck& from, wire::HeartbeatAck& to) { to.set_sequence(from.sequence); }
Status get(const wire::HeartbeatAck& from, HeartbeatAck& to) {
  to.sequence = from.sequence();
  return {};
}

// ---- peer to broker

void put(const StageWork& from, wire::StageWork& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_segments_done(from.segments_done);
  to.set_seconds_busy(from.seconds_busy);
}
Status get(const wire::StageWork& from, StageWork& to) {
  Reader read("StageWork");
  to = {.run = from.run(), .plan_version = from.plan_version(), .segments_done = from.segments_done()};
  read.not_negative(from.seconds_busy(), to.seconds_busy, "seconds_busy");
  return read.status();
}

void put(const StageSaving& from, wire::StageSaving& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_step(from.step);
  to.set_saved(static_cast<uint64_t>(from.saved.value));
}
Status get(const wire::StageSaving& from, StageSaving& to) {
  Reader read("StageSaving");
  to = {.run = from.run(), .plan_version = from.plan_version(), .step = from.step()};
  read.bytes(from.saved(), to.saved, "saved");
  return read.status();
}

void put(const Heartbeat& from, wire::Heartbeat& to) {
  to.set_sequence(from.sequence);
  to.set_memory_free(static_cast<uint64_t>(from.memory_free.value));
  if (from.work) put(*from.work, *to.mutable_work());
  if (from.saving) put(*from.saving, *to.mutable_saving());
}
Status get(const wire::Heartbeat& from, Heartbeat& to) {
  Reader read("Heartbeat");
  to.sequence = from.sequence();
  read.bytes(from.memory_free(), to.memory_free, "memory_free");
  if (from.has_work()) read.part(from.work(), to.work.emplace(), "work");
  if (from.has_saving()) read.part(from.saving(), to.saving.emplace(), "saving");
  return read.status();
}

void put(const Drain& from, wire::Drain& to) {
  to.set_reason(put_text(from.reason, kNameMax));
  to.set_returns(from.returns);
}
Status get(const wire::Drain& from, Drain& to) {
  Reader read("Drain");
  read.name(from.reason(), to.reason, "reason");
  to.returns = from.returns();
  return read.status();
}

void put(const StageResumed& from, wire::StageResumed& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_last_sequence(from.last_sequence);
  to.set_persistent(static_cast<uint64_t>(from.persistent.value));
  to.set_microbatch(static_cast<uint64_t>(from.microbatch.value));
}
Status get(const wire::StageResumed& from, StageResumed& to) {
  Reader read("StageResumed");
  to = {.run = from.run(), .plan_version = from.plan_version(), .last_sequence = from.last_sequence()};
  read.bytes(from.persistent(), to.persistent, "persistent");
  read.bytes(from.microbatch(), to.microbatch, "microbatch");
  return read.status();
}

void put(const StandingBy& from, wire::StandingBy& to) {
  to.set_run(from.run);
  to.set_step(from.step);
  to.set_list(from.list);
  if (!from.failure) return;
  to.set_failure_code(put_enum<wire::ErrorCode>(from.failure->code));
  to.set_failure_message(put_text(from.failure->message));
  if (from.damaged) to.set_damaged(put_bytes(*from.damaged));
}
Status get(const wire::StandingBy& from, StandingBy& to) {
  Reader read("StandingBy");
  to.run = from.run();
  to.step = from.step();
  to.list = from.list();
  if (from.failure_code() != wire::ERROR_CODE_UNSPECIFIED) {
    to.failure.emplace();
    read.error_code(from.failure_code(), to.failure->code, "failure_code");
    read.message(from.failure_message(), to.failure->message, "failure_message");
    read.digest(from.damaged(), to.damaged, "damaged");
  }
  return read.status();
}

void put(const PeerLog& from, wire::PeerLog& to) { to.set_text(put_text(from.text)); }
Status get(const wire::PeerLog& from, PeerLog& to) {
  Reader read("PeerLog");
  read.message(from.text(), to.text, "text");
  return read.status();
}

// ---- between peers

void put(const LinkHello& from, wire::LinkHello& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  put_seat(from.seat, to);
  to.set_received(from.received);
  to.set_streams(from.streams);
  to.set_stream(from.stream);
  to.set_session(from.session);
}
Status get(const wire::LinkHello& from, LinkHello& to) {
  Reader read("LinkHello");
  to.run = from.run();
  to.plan_version = from.plan_version();
  read.seat(from.stage(), from.replica(), to.seat, "stage");
  to.received = from.received();
  to.streams = from.streams();
  to.stream = from.stream();
  to.session = from.session();
  return read.status();
}

void put(const LinkReady& from, wire::LinkReady& to) {
  to.set_received(from.received);
  to.set_streams(from.streams);
  to.set_session(from.session);
}
Status get(const wire::LinkReady& from, LinkReady& to) {
  to = {from.received(), from.streams(), from.session()};
  return {};
}

void put(const LinkAck& from, wire::LinkAck& to) { to.set_received(from.received); }
Status get(const wire::LinkAck& from, LinkAck& to) {
  to.received = from.received();
  return {};
}

}  // namespace weft::proto
