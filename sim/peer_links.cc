#include "sim/peer_links.h"

#include <algorithm>

#include "sim/peer_host.h"

namespace weft::sim {

using std::chrono::seconds;

namespace {
constexpr Duration kProbeTime = seconds(2);
constexpr Duration kArrivalWaits = seconds(30);
}  // namespace

void PeerLinks::accept(const Line& line, const Network::Accepted& accepted) {
  const NodeId from = line.other();
  line.listen({.on_packet =
                   [this, line, from, guarded = shell_.process.guard()](const Packet& packet) {
                     guarded([this, line, from, packet] {
                       const auto* hello =
                           packet.message ? std::get_if<proto::LinkHello>(packet.message.get()) : nullptr;
                       if (hello == nullptr) return line.close();
                       if (shell_.stage && shell_.stage->links &&
                           shell_.stage->links->offer(line, key_of(from), *hello))
                         return;
                       std::erase_if(arrivals_, [&](const Waiting& w) {
                         const bool old = shell_.world.now() - w.since > kArrivalWaits || !w.line.is_open();
                         if (old) w.line.close();
                         return old;
                       });
                       if (arrivals_.size() > 64) return line.close();
                       arrivals_.push_back(
                           {line, from, *hello, shell_.world.now()});  // its stage may be assigned yet
                     });
                   },
               .on_lost = [](const Error&) {}});
  accepted();
}

PeerId PeerLinks::key_of(NodeId node) const {
  const PeerHost* host = shell_.find_host(node);
  return host != nullptr ? host->options().key : PeerId{};
}

std::pair<NodeId, uint32_t> PeerLinks::node_at(const std::string& address) {
  const size_t colon = address.find(':');
  return {static_cast<NodeId>(std::stoul(address.substr(0, colon))),
          static_cast<uint32_t>(std::stoul(address.substr(colon + 1)))};
}

void PeerLinks::open(const peer::OpenLinks& effect) {
  ++probes_;
  shell_.begin_stage(effect.generation, effect.assignment);
  const uint64_t generation = effect.generation;
  const auto guarded = [this, generation, life = shell_.process.guard()](std::function<void()> action) {
    life([this, generation, action = std::move(action)] {
      if (shell_.has_stage(generation) && shell_.stage->links) action();
    });
  };
  LinkSet::Connector connector;
  connector.guarded = guarded;
  connector.dial = [this, guarded](const std::string& address, Duration deadline,
                                   const std::function<void(Result<Line>)>& done) {
    const auto [node, epoch] = node_at(address);
    const PeerHost* host = shell_.find_host(node);
    const auto answer = [guarded, done](const Result<Line>& result) {
      guarded([done, result] { done(result); });
    };
    if (host == nullptr || host->address() != epoch)  // nobody is there
      return shell_.world.after(deadline, [answer] { answer(fail(ErrorCode::Timeout, "nobody answers")); });
    shell_.network.dial(shell_.options.node, node, deadline, answer);
  };
  connector.relay = [this, guarded](const proto::Secret& ticket, Duration deadline,
                                    const std::function<void(Result<Line>)>& done) {
    // Once, whatever comes first.
    const auto open = std::make_shared<bool>(true);
    const auto answer = [guarded, done, open](const Result<Line>& result) {
      guarded([done, result, open] {
        if (std::exchange(*open, false))
          done(result);
        else if (result)
          result->close();
      });
    };
    shell_.world.after(deadline, [answer] { answer(fail(ErrorCode::Timeout, "the relay does not answer")); });
    const Duration one_way = shell_.network.latency(shell_.options.node, 0);
    shell_.world.after(2 * one_way, [this, ticket, answer, one_way] {
      if (shell_.network.blocked(shell_.options.node, 0) || shell_.network.blocked(0, shell_.options.node))
        return;
      if (!shell_.broker.alive())
        return shell_.world.after(one_way,
                                  [answer] { answer(fail(ErrorCode::Unavailable, "connection refused")); });
      shell_.broker.serve([this, ticket, answer] {
        shell_.broker.relay(shell_.options.node, ticket, [answer](std::optional<Line> line) {
          if (line)
            answer(*line);
          else
            answer(fail(ErrorCode::NotFound, "the relay has no such ticket, or nobody else came"));
        });
      });
    });
  };
  shell_.stage->links = std::make_unique<LinkSet>(
      shell_.world, shell_.options.node, effect.assignment, std::move(connector),
      LinkSet::Handlers{
          .on_all_up =
              [this, generation] { shell_.act(shell_.machine->on_links_up(shell_.world.now(), generation)); },
          .on_failed =
              [this, generation](const plan::Seat& seat, const Error& error) {
                shell_.act(shell_.machine->on_link_failed(shell_.world.now(), generation, seat, error));
              },
          .on_tensor = [this, generation](const plan::Seat& from, const TensorPacket& packet,
                                          bool again) { on_tensor(generation, from, packet, again); }},
      shell_.draw.next());
  if (shell_.options.bug == Bug::TensorTwice) shell_.stage->links->take_again();
  shell_.stage->links->start();
  for (Waiting& waiting : std::exchange(arrivals_, {})) {
    if (!waiting.line.is_open()) continue;
    if (shell_.stage && shell_.stage->links &&
        shell_.stage->links->offer(waiting.line, key_of(waiting.from), waiting.hello))
      continue;
    arrivals_.push_back(std::move(waiting));
  }
  tick(generation);
}

// A measurement finds what the network's model says. It takes its time, and a stage ends it.
void PeerLinks::probe(const proto::ProbeLink& link) {
  const uint64_t number = ++probes_;
  const NodeId other = shell_.broker.node_of(link.peer);
  proto::ProbeReport report{.round = link.round, .peer = link.peer, .failure = {}};
  const PeerHost* host = shell_.find_host(other);
  const bool is_there = host != nullptr && host->alive() && !host->frozen() &&
                        !shell_.network.blocked(other, shell_.options.node) &&
                        !shell_.network.blocked(shell_.options.node, other);
  if (is_there) {
    report.bytes_per_second = shell_.network.flow_rate(other, shell_.options.node);
    report.round_trip = 2 * shell_.network.latency(shell_.options.node, other);
  } else {
    report.failure = Error{ErrorCode::Timeout, "no way to the peer"};
  }
  shell_.later(is_there ? kProbeTime : link.deadline, [this, number, report] {
    if (number == probes_) shell_.act(shell_.machine->on_probed(shell_.world.now(), report));
  });
}

void PeerLinks::tick(uint64_t generation) {
  shell_.later(kLinkTick, [this, generation] {
    if (!shell_.has_stage(generation) || !shell_.stage->links) return;
    shell_.stage->links->on_tick();
    tick(generation);
  });
}

void PeerLinks::note_timing(const plan::Seat& from, const proto::TensorHeader& header) {
  const int64_t bytes = proto::payload_bytes(header.spec, header.codec).value;
  if (bytes < kTimedSizeMin) return;
  for (const proto::LinkRoute& route : shell_.stage->assignment->links)
    if (route.seat == from)
      timings_.note(from, bytes,
                    shell_.network.flow_rate(shell_.broker.node_of(route.peer), shell_.options.node));
}

void PeerLinks::on_tensor(uint64_t generation, const plan::Seat& from, const TensorPacket& packet,
                          bool again) {
  shell_.world.note(What::Tensor, shell_.options.node, packet.header.edge,
                    (packet.header.step << 16) | packet.header.microbatch);
  if (packet.spoilt && packet.header.program == proto::ProgramKind::Train)
    return shell_.act(shell_.machine->on_not_finite(
        shell_.world.now(), generation, from, packet.header.step,
        Error{ErrorCode::OutOfRange,
              "edge " + std::to_string(packet.header.edge) + ": a value is not finite"}));
  if (packet.spoilt && packet.header.program == proto::ProgramKind::Agree)
    return shell_.act(
        shell_.machine->on_difference_not_finite(shell_.world.now(), generation, from, packet.header.step,
                                                 Error{ErrorCode::OutOfRange, "a difference is not finite"}));
  bool accepted = false;
  if (again) {
    return shell_.microbatches.add_again(packet);
  }
  if (shell_.stage) note_timing(from, packet.header);
  peer::PeerEffects effects =
      shell_.machine->on_tensor(shell_.world.now(), generation, from, packet.header, accepted);
  const bool is_of_replicas =
      packet.header.program == proto::ProgramKind::Agree || packet.header.program == proto::ProgramKind::Sum;
  if (accepted && shell_.stage && is_of_replicas) {
    shell_.agreed.put(packet);
  } else if (accepted && shell_.stage) {
    for (const proto::StageProgram& program : shell_.stage->assignment->programs) {
      if (program.kind != packet.header.program) continue;
      for (uint32_t r = 0; r < program.receives.size(); ++r)
        if (program.receives[r].edge == packet.header.edge)
          shell_.microbatches.put(Microbatches::key_of(packet.header), r, packet,
                                  /*keeps_old=*/shell_.options.bug == Bug::StaleTensors);
    }
  }
  shell_.act(std::move(effects));
}

}  // namespace weft::sim
