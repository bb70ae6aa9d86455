#include "sim/peer_host.h"

#include <algorithm>

#include "base/overloaded.h"

namespace weft::sim {

using std::chrono::microseconds;
using std::chrono::seconds;

namespace {
constexpr Duration kConnectDeadline = seconds(10);
}  // namespace

PeerHost::PeerHost(World& world, Network& network, BrokerHost& broker, Checkers& checkers, Options options,
                   uint64_t seed, FindHost find_host)
    : shell_{.world = world,
             .network = network,
             .broker = broker,
             .checkers = checkers,
             .draw = Draw(seed, 0x70656572 + options.node),
             .options = std::move(options),
             .find_host = std::move(find_host),
             .act = [this](Effects effects) { act(std::move(effects)); }},
      links_(shell_),
      tasks_(shell_),
      transfers_(shell_) {}

void PeerHost::start() {
  if (shell_.machine) return;
  shell_.process.begin();
  shell_.world.note(What::PeerStarts, shell_.options.node, shell_.process.life());
  shell_.network.set_silent(shell_.options.node, false);
  shell_.broker.set_key(shell_.options.node, shell_.options.key);
  peer::PeerOptions options;
  options.session.seed = shell_.draw.next();
  // Three of four have memory for one, two or three copies of a state.
  if (const size_t fit = options.session.seed % 4; fit != 0) options.bounds.copies_fit = fit;
  proto::Hello& hello = options.session.hello;
  hello.software = "sim";
  hello.token = proto::TokenProof{1, {}};
  hello.name = "peer-" + std::to_string(shell_.options.node);
  hello.instance = shell_.draw.next();
  proto::DeviceReport device;
  device.device = "sim";
  device.rates.matmul_flops_per_second = static_cast<double>(shell_.options.promised) * 1e6;
  device.memory = shell_.options.memory;
  device.fingerprint = shell_.options.fingerprint;
  if (shell_.options.reachable)
    device.addresses = {std::to_string(shell_.options.node) + ":" + std::to_string(address_)};
  hello.device = device;
  shell_.machine = std::make_unique<peer::Peer>(options);
  listen();
  wake_at_ = Instant::max();
  tasks_.begin();
  transfers_.begin();
  act(shell_.machine->start(shell_.world.now()));
}

void PeerHost::listen() {
  shell_.network.set_acceptor(shell_.options.node, [this, guarded = shell_.process.guard()](
                                                       const Line& line, const Network::Accepted& accepted) {
    guarded([this, line, accepted] { links_.accept(line, accepted); });
  });
}

void PeerHost::crash(bool silent) {
  if (!shell_.machine) return;
  shell_.world.note(What::PeerCrashes, shell_.options.node, silent);
  shell_.process.end();
  shell_.machine.reset();
  shell_.retire_links();
  shell_.stage.reset();
  line_ = {};
  links_.end();
  shell_.microbatches.clear();
  shell_.agreed.clear();
  shell_.blobs.clear();
  ++connection_;
  shell_.network.drop_node(shell_.options.node, silent);
  if (silent) shell_.network.set_silent(shell_.options.node, true);
}

void PeerHost::freeze(bool frozen) {
  if (!shell_.machine || shell_.process.frozen() == frozen) return;
  if (frozen)
    shell_.process.freeze();
  else
    shell_.process.thaw();
}

// The next that is asked of it says so.
void PeerHost::lose_device() {
  shell_.run([this] {
    act(shell_.machine->on_task_done(shell_.world.now(), shell_.machine->generation(), {},
                                     fail(ErrorCode::DeviceLost, "the device fell off the bus")));
  });
}

void PeerHost::drain() {
  shell_.run([this] { act(shell_.machine->request_drain(shell_.world.now())); });
}

void PeerHost::move() {
  ++address_;
  shell_.network.drop_node(shell_.options.node, /*silent=*/true);
  listen();
  // Its own kernel notices: the network went away.
  shell_.run([this] {
    if (line_) {
      drop_broker();
      act(shell_.machine->on_lost(shell_.world.now(), {ErrorCode::Unavailable, "the network went away"}));
    }
  });
}

// Carries out what the machine wants, then sees when it wants to be woken.
void PeerHost::act(Effects effects) {
  const uint64_t life = shell_.process.life();
  for (peer::PeerEffect& effect : effects) {
    if (life != shell_.process.life()) return;
    std::visit(Overloaded{
                   [&](peer::ConnectToBroker&) { connect(); },
                   [&](peer::DropBroker&) { drop_broker(); },
                   [&](peer::TellBroker& e) { tell(e.message); },
                   [&](peer::Leave& e) {
                     shell_.world.note(What::PeerLeaves, shell_.options.node, e.why.has_value());
                     if (!e.why && shell_.world.traces())
                       shell_.world.say("peer " + std::to_string(shell_.options.node) +
                                        " leaves: " + e.why.error().message);
                     if (line_) line_.close();
                     crash(/*silent=*/false);
                     if (shell_.options.liar || returns_always_) come_back();
                   },
                   [&](peer::Say& e) {
                     if (shell_.world.traces())
                       shell_.world.say("peer " + std::to_string(shell_.options.node) + ": " + e.line);
                   },
                   [&](peer::OpenLinks& e) { links_.open(e); },
                   [&](peer::CloseLinks&) {
                     shell_.retire_links();
                     if (shell_.options.bug != Bug::StaleTensors) shell_.microbatches.clear();
                     shell_.agreed.clear();
                   },
                   [&](peer::InviteLink& e) {
                     if (shell_.stage && shell_.stage->links) shell_.stage->links->invite(e.ticket);
                   },
                   [&](peer::Probe& e) { links_.probe(e.link); },
                   [&](peer::FetchBlob& e) { transfers_.fetch_blob(e); },
                   [&](peer::ForgetBlobs& e) {
                     for (const Digest& blob : e.blobs) shell_.blobs.drop(blob);
                   },
                   [&](peer::MakeRunner& e) { tasks_.make_runner(e); },
                   [&](peer::LoadRunner& e) { tasks_.load_runner(e); },
                   [&](peer::DropRunner&) {
                     if (shell_.stage) shell_.stage->runner.reset();
                     // Its uploads that have not begun are given up (BulkTransfers::cancel_puts).
                     transfers_.give_up_uploads();
                   },
                   [&](peer::ParkRunner&) {},
                   [&](peer::TakeRunner&) {},
                   [&](peer::AskDevice&) { tasks_.ask_device(); },
                   [&](peer::RunTask& e) { tasks_.run(e); },
                   [&](peer::PassRequest&) {},  // nothing is served here
                   [&](peer::FetchData& e) { transfers_.fetch_data(e); },
                   [&](peer::DropMicrobatches& e) {
                     for (const auto& key : e.keys) shell_.microbatches.drop(key);
                   },
                   [&](peer::OfferBlobs& e) { transfers_.offer(e); },
                   [&](peer::UploadBlob& e) { transfers_.upload(e); },
               },
               effect);
  }
  if (life != shell_.process.life() || !shell_.machine) return;
  if (++events_ % 64 == 0) check_memory();
  const auto next = shell_.machine->next_deadline(shell_.world.now());
  if (!next || *next >= wake_at_) return;
  wake_at_ = std::max(*next, shell_.world.now() + microseconds(1));
  shell_.world.at(wake_at_, [this, guarded = shell_.process.guard(), wake = ++wakes_] {
    if (wake == wakes_) guarded([this] { this->wake(); });
  });
}

void PeerHost::wake() {
  wake_at_ = Instant::max();
  act(shell_.machine->on_tick(shell_.world.now(), shell_.options.memory));
}

void PeerHost::check_memory() {
  const auto held = shell_.machine->held();
  shell_.checkers.on_peer_memory(held.size());
  if (shell_.blobs.count() != held.size()) {
    if (shell_.blobs.count() > held.size())
      return shell_.world.fail("peer " + std::to_string(shell_.options.node) + "'s shell holds " +
                               std::to_string(shell_.blobs.count()) + " blobs, its machine knows of " +
                               std::to_string(held.size()));
  }
  for (const Digest& blob : held)
    if (!shell_.blobs.has(blob))
      return shell_.world.fail("a peer's machine counts on a blob that its shell has not");
}

// ---- the broker

void PeerHost::connect() {
  const uint64_t attempt = ++connection_;
  shell_.network.dial(
      shell_.options.node, 0, kConnectDeadline,
      [this, attempt, guarded = shell_.process.guard()](const Result<Line>& result) {
        guarded([this, attempt, result] {
          if (attempt != connection_) {
            if (result) result->close();
            return;
          }
          if (!result) {
            shell_.world.note(What::ConnectFailed, shell_.options.node);
            return act(shell_.machine->on_connect_failed(shell_.world.now(), result.error()));
          }
          shell_.world.note(What::Connected, shell_.options.node);
          line_ = *result;
          const auto inner = shell_.process.guard();
          line_.listen({.on_packet =
                            [this, attempt, inner](const Packet& packet) {
                              inner([this, attempt, packet] {
                                if (attempt != connection_) return;
                                shell_.world.note(What::ToPeer, shell_.options.node, packet.message->index());
                                if (shell_.options.bug == Bug::ReportDropped &&
                                    std::holds_alternative<proto::ResumeStage>(*packet.message))
                                  report_to_drop_ = true;
                                if (shell_.options.liar)
                                  for (const auto& lie : shell_.options.liar->answer(*packet.message))
                                    tell_line(lie);
                                act(shell_.machine->on_message(shell_.world.now(), *packet.message));
                              });
                            },
                        .on_lost =
                            [this, attempt, inner](const Error& error) {
                              inner([this, attempt, error] {
                                if (attempt != connection_) return;
                                line_ = {};
                                ++connection_;
                                act(shell_.machine->on_lost(shell_.world.now(), error));
                              });
                            }});
          act(shell_.machine->on_connected(shell_.world.now()));
        });
      });
}

void PeerHost::drop_broker() {
  ++connection_;
  if (line_) line_.close();
  line_ = {};
}

void PeerHost::tell(const proto::Message& message) {
  if (!line_) return;
  if (report_to_drop_ && (std::holds_alternative<proto::StepReport>(message) ||
                          std::holds_alternative<proto::CheckpointReport>(message))) {
    report_to_drop_ = false;
    return;
  }
  proto::Message truth = message;
  if (auto* report = std::get_if<proto::StepReport>(&truth)) {
    shell_.checkers.on_step_report(*report);
    if (report->updated) links_.tell(*report);
  }
  if (shell_.options.liar) {
    for (const auto& said : shell_.options.liar->say(truth, shell_.machine->assignment().get()))
      tell_line(said);
    return;
  }
  tell_line(truth);
}

void PeerHost::tell_line(const proto::Message& message) {
  int64_t size = 150;
  if (const auto* report = std::get_if<proto::CheckpointReport>(&message))
    size += 80 * static_cast<int64_t>(report->tensors.size());
  if (line_)
    line_.send({.message = std::make_shared<const proto::Message>(message), .tensor = {}, .size = size});
}

void PeerHost::come_back() {
  shell_.world.after(shell_.draw.between(seconds(1), seconds(20)), [this, life = shell_.process.life()] {
    if (life == shell_.process.life()) start();
  });
}

}  // namespace weft::sim
