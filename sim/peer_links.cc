// A simulated peer's links to other peers, its probes, and the tensors that come.
#include <algorithm>

#include "sim/peer_host.h"

namespace weft::sim {

using std::chrono::seconds;

namespace {
constexpr Duration kProbeTime = seconds(2);
constexpr Duration kArrivalWaits = seconds(30);
}  // namespace

void PeerHost::accept(Line line, Network::Accepted accepted) {
  const NodeId from = line.other();
  line.listen(
      {.on_packet =
           [this, line, from, guarded = process_.guard()](const Packet& packet) {
             guarded([this, line, from, packet] {
               const auto* hello =
                   packet.message ? std::get_if<proto::LinkHello>(packet.message.get()) : nullptr;
               if (hello == nullptr) return line.close();
               if (stage_ && stage_->links && stage_->links->offer(line, key_of(from), *hello)) return;
               std::erase_if(arrivals_, [&](const Waiting& w) {
                 const bool old = world_.now() - w.since > kArrivalWaits || !w.line.is_open();
                 if (old) w.line.close();
                 return old;
               });
               if (arrivals_.size() > 64) return line.close();
               arrivals_.push_back({line, from, *hello, world_.now()});  // its stage may be assigned yet
             });
           },
       .on_lost = [](const Error&) {}});
  accepted();
}

PeerId PeerHost::key_of(NodeId node) const {
  const PeerHost* host = find_host_(node);
  return host != nullptr ? host->options().key : PeerId{};
}

std::pair<NodeId, uint32_t> PeerHost::node_at(const std::string& address) {
  const size_t colon = address.find(':');
  return {static_cast<NodeId>(std::stoul(address.substr(0, colon))),
          static_cast<uint32_t>(std::stoul(address.substr(colon + 1)))};
}

void PeerHost::open_links(const peer::OpenLinks& effect) {
  ++probes_;
  if (!stage_ || stage_->generation != effect.generation) {
    retire_links();
    stage_ = Stage{effect.generation, effect.assignment, nullptr, nullptr};
  }
  const uint64_t generation = effect.generation;
  const auto guarded = [this, generation, life = process_.guard()](std::function<void()> action) {
    life([this, generation, action = std::move(action)] {
      if (stage_ && stage_->generation == generation && stage_->links) action();
    });
  };
  LinkSet::Connector connector;
  connector.guarded = guarded;
  connector.dial = [this, guarded](const std::string& address, Duration deadline,
                                   std::function<void(Result<Line>)> done) {
    const auto [node, epoch] = node_at(address);
    const PeerHost* host = find_host_(node);
    const auto answer = [guarded, done](Result<Line> result) { guarded([done, result] { done(result); }); };
    if (host == nullptr || host->address() != epoch)  // nobody is there
      return world_.after(deadline, [answer] { answer(fail(ErrorCode::Timeout, "nobody answers")); });
    network_.dial(options_.node, node, deadline, answer);
  };
  connector.relay = [this, guarded](const proto::Secret& ticket, Duration deadline,
                                    std::function<void(Result<Line>)> done) {
    // Once, whatever comes first.
    const auto open = std::make_shared<bool>(true);
    const auto answer = [guarded, done, open](Result<Line> result) {
      guarded([done, result, open] {
        if (std::exchange(*open, false))
          done(result);
        else if (result)
          result->close();
      });
    };
    world_.after(deadline, [answer] { answer(fail(ErrorCode::Timeout, "the relay does not answer")); });
    const Duration one_way = network_.latency(options_.node, 0);
    world_.after(2 * one_way, [this, ticket, answer, one_way] {
      if (network_.blocked(options_.node, 0) || network_.blocked(0, options_.node)) return;
      if (!broker_.alive())
        return world_.after(one_way,
                            [answer] { answer(fail(ErrorCode::Unavailable, "connection refused")); });
      broker_.serve([this, ticket, answer] {
        broker_.relay(options_.node, ticket, [answer](std::optional<Line> line) {
          if (line)
            answer(*line);
          else
            answer(fail(ErrorCode::NotFound, "the relay has no such ticket, or nobody else came"));
        });
      });
    });
  };
  stage_->links = std::make_unique<LinkSet>(
      world_, options_.node, effect.assignment, std::move(connector),
      LinkSet::Handlers{
          .on_all_up = [this, generation] { act(machine_->on_links_up(world_.now(), generation)); },
          .on_failed =
              [this, generation](const plan::Seat& seat, const Error& error) {
                act(machine_->on_link_failed(world_.now(), generation, seat, error));
              },
          .on_tensor = [this, generation](const plan::Seat& from, const TensorPacket& packet,
                                          bool again) { on_tensor(generation, from, packet, again); }},
      draw_.next());
  if (options_.bug == Bug::TensorTwice) stage_->links->take_again();
  stage_->links->start();
  for (Waiting& waiting : std::exchange(arrivals_, {})) {
    if (!waiting.line.is_open()) continue;
    if (stage_ && stage_->links && stage_->links->offer(waiting.line, key_of(waiting.from), waiting.hello))
      continue;
    arrivals_.push_back(std::move(waiting));
  }
  tick_links(generation);
}

// A measurement finds what the network's model says. It takes its time, and a stage ends it.
void PeerHost::probe(const proto::ProbeLink& link) {
  const uint64_t number = ++probes_;
  const NodeId other = broker_.node_of(link.peer);
  proto::ProbeReport report{.round = link.round, .peer = link.peer, .failure = {}};
  const PeerHost* host = find_host_(other);
  const bool is_there = host != nullptr && host->alive() && !host->frozen() &&
                        !network_.blocked(other, options_.node) && !network_.blocked(options_.node, other);
  if (is_there) {
    report.bytes_per_second = network_.flow_rate(other, options_.node);
    report.round_trip = 2 * network_.latency(options_.node, other);
  } else {
    report.failure = Error{ErrorCode::Timeout, "no way to the peer"};
  }
  later(is_there ? kProbeTime : link.deadline, [this, number, report] {
    if (number == probes_) act(machine_->on_probed(world_.now(), report));
  });
}

// Something of it may be on the stack.
void PeerHost::retire_links() {
  if (!stage_ || !stage_->links) return;
  world_.after(Duration{}, [links = std::shared_ptr<LinkSet>(std::move(stage_->links))] {});
}

void PeerHost::tick_links(uint64_t generation) {
  later(kLinkTick, [this, generation] {
    if (!stage_ || stage_->generation != generation || !stage_->links) return;
    stage_->links->on_tick();
    tick_links(generation);
  });
}

void PeerHost::note_timing(const plan::Seat& from, const proto::TensorHeader& header) {
  const int64_t bytes = proto::payload_bytes(header.spec, header.codec).value;
  if (bytes < kTimedSizeMin) return;
  for (const proto::LinkRoute& route : stage_->assignment->links)
    if (route.seat == from)
      timings_.note(from, bytes, network_.flow_rate(broker_.node_of(route.peer), options_.node));
}

void PeerHost::on_tensor(uint64_t generation, const plan::Seat& from, const TensorPacket& packet,
                         bool again) {
  world_.note(What::Tensor, options_.node, packet.header.edge,
              (packet.header.step << 16) | packet.header.microbatch);
  if (packet.spoilt && packet.header.program == proto::ProgramKind::Train)
    return act(machine_->on_not_finite(
        world_.now(), generation, from, packet.header.step,
        Error{ErrorCode::OutOfRange,
              "edge " + std::to_string(packet.header.edge) + ": a value is not finite"}));
  bool accepted = false;
  if (again) {
    return microbatches_.add_again(packet);
  }
  if (stage_) note_timing(from, packet.header);
  Effects effects = machine_->on_tensor(world_.now(), generation, from, packet.header, accepted);
  if (accepted && stage_) {
    for (const proto::StageProgram& program : stage_->assignment->programs) {
      if (program.kind != packet.header.program) continue;
      for (uint32_t r = 0; r < program.receives.size(); ++r)
        if (program.receives[r].edge == packet.header.edge)
          microbatches_.put(Microbatches::key_of(packet.header), r, packet,
                            /*keeps_old=*/options_.bug == Bug::StaleTensors);
    }
  }
  act(std::move(effects));
}

}  // namespace weft::sim
