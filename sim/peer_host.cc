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
    : world_(world),
      network_(network),
      broker_(broker),
      checkers_(checkers),
      options_(std::move(options)),
      draw_(seed, 0x70656572 + options_.node),
      find_host_(std::move(find_host)),
      transfers_(world, network, broker, process_, draw_, options_.node) {}

void PeerHost::run(std::function<void()> action) {
  if (machine_) process_.run(std::move(action));
}

void PeerHost::later(Duration delay, std::function<void()> action) {
  world_.after(delay, [guarded = process_.guard(), action = std::move(action)] { guarded(action); });
}

void PeerHost::start() {
  if (machine_) return;
  process_.begin();
  world_.note(What::PeerStarts, options_.node, process_.life());
  network_.set_silent(options_.node, false);
  broker_.set_key(options_.node, options_.key);
  peer::PeerOptions options;
  options.session.seed = draw_.next();
  // Three of four have memory for one, two or three copies of a state.
  if (const size_t fit = options.session.seed % 4; fit != 0) options.bounds.copies_fit = fit;
  proto::Hello& hello = options.session.hello;
  hello.software = "sim";
  hello.token = proto::TokenProof{1, {}};
  hello.name = "peer-" + std::to_string(options_.node);
  hello.instance = draw_.next();
  proto::DeviceReport device;
  device.device = "sim";
  device.rates.matmul_flops_per_second = static_cast<double>(options_.promised) * 1e6;
  device.memory = options_.memory;
  device.fingerprint = options_.fingerprint;
  if (options_.reachable) device.addresses = {std::to_string(options_.node) + ":" + std::to_string(address_)};
  hello.device = device;
  machine_ = std::make_unique<peer::Peer>(options);
  network_.set_acceptor(options_.node,
                        [this, guarded = process_.guard()](Line line, Network::Accepted accepted) {
                          guarded([this, line, accepted] { accept(line, accepted); });
                        });
  wake_at_ = Instant::max();
  device_.begin(world_.now());
  transfers_.begin();
  act(machine_->start(world_.now()));
}

void PeerHost::crash(bool silent) {
  if (!machine_) return;
  world_.note(What::PeerCrashes, options_.node, silent);
  process_.end();
  machine_.reset();
  retire_links();
  stage_.reset();
  line_ = {};
  arrivals_.clear();
  microbatches_.clear();
  blobs_.clear();
  ++connection_;
  network_.drop_node(options_.node, silent);
  if (silent) network_.set_silent(options_.node, true);
}

void PeerHost::freeze(bool frozen) {
  if (!machine_ || process_.frozen() == frozen) return;
  if (frozen)
    process_.freeze();
  else
    process_.thaw();
}

// The next that is asked of it says so.
void PeerHost::lose_device() {
  run([this] {
    act(machine_->on_task_done(world_.now(), machine_->generation(), {},
                               fail(ErrorCode::DeviceLost, "the device fell off the bus")));
  });
}

void PeerHost::drain() {
  run([this] { act(machine_->request_drain(world_.now())); });
}

void PeerHost::move() {
  ++address_;
  network_.drop_node(options_.node, /*silent=*/true);
  network_.set_acceptor(options_.node,
                        [this, guarded = process_.guard()](Line line, Network::Accepted accepted) {
                          guarded([this, line, accepted] { accept(line, accepted); });
                        });
  // Its own kernel notices: the network went away.
  run([this] {
    if (line_) {
      drop_broker();
      act(machine_->on_lost(world_.now(), {ErrorCode::Unavailable, "the network went away"}));
    }
  });
}

// Carries out what the machine wants, then sees when it wants to be woken.
void PeerHost::act(Effects effects) {
  const uint64_t life = process_.life();
  for (peer::PeerEffect& effect : effects) {
    if (life != process_.life()) return;
    std::visit(
        Overloaded{
            [&](peer::ConnectToBroker&) { connect(); },
            [&](peer::DropBroker&) { drop_broker(); },
            [&](peer::TellBroker& e) { tell(e.message); },
            [&](peer::Leave& e) {
              world_.note(What::PeerLeaves, options_.node, e.why.has_value());
              if (!e.why && world_.traces())
                world_.say("peer " + std::to_string(options_.node) + " leaves: " + e.why.error().message);
              if (line_) line_.close();
              crash(/*silent=*/false);
              if (options_.liar || returns_always_) come_back();
            },
            [&](peer::Say& e) {
              if (world_.traces()) world_.say("peer " + std::to_string(options_.node) + ": " + e.line);
            },
            [&](peer::OpenLinks& e) { open_links(e); },
            [&](peer::CloseLinks&) {
              retire_links();
              if (options_.bug != Bug::StaleTensors) microbatches_.clear();
            },
            [&](peer::InviteLink& e) {
              if (stage_ && stage_->links) stage_->links->invite(e.ticket);
            },
            [&](peer::Probe& e) { probe(e.link); },
            [&](peer::FetchBlob& e) { fetch_blob(e); },
            [&](peer::ForgetBlobs& e) {
              for (const Digest& blob : e.blobs) blobs_.drop(blob);
            },
            [&](peer::MakeRunner& e) { make_runner(e); },
            [&](peer::DropRunner&) {
              if (stage_) stage_->runner.reset();
              // Its uploads that have not begun are given up (BulkTransfers::cancel_puts).
              transfers_.give_up_uploads();
            },
            [&](peer::ParkRunner&) {},
            [&](peer::TakeRunner&) {},
            [&](peer::AskDevice&) {
              later(std::max(device_.free() - world_.now(), Duration{}),
                    [this] { act(machine_->on_device(world_.now(), {})); });
            },
            [&](peer::RunTask& e) { run_task(e); },
            [&](peer::PassRequest&) {},  // nothing is served here
            [&](peer::FetchData& e) { fetch_data(e); },
            [&](peer::DropMicrobatches& e) {
              for (const auto& key : e.keys) microbatches_.drop(key);
            },
            [&](peer::OfferBlobs& e) { offer(e); },
            [&](peer::UploadBlob& e) { upload(e); },
        },
        effect);
  }
  if (life != process_.life() || !machine_) return;
  if (++events_ % 64 == 0) check_memory();
  const auto next = machine_->next_deadline(world_.now());
  if (!next || *next >= wake_at_) return;
  wake_at_ = std::max(*next, world_.now() + microseconds(1));
  world_.at(wake_at_, [this, guarded = process_.guard(), wake = ++wakes_] {
    if (wake == wakes_) guarded([this] { this->wake(); });
  });
}

void PeerHost::wake() {
  wake_at_ = Instant::max();
  act(machine_->on_tick(world_.now(), options_.memory));
}

void PeerHost::check_memory() {
  const auto held = machine_->held();
  checkers_.on_peer_memory(held.size());
  if (blobs_.count() != held.size()) {
    if (blobs_.count() > held.size())
      return world_.fail("peer " + std::to_string(options_.node) + "'s shell holds " +
                         std::to_string(blobs_.count()) + " blobs, its machine knows of " +
                         std::to_string(held.size()));
  }
  for (const Digest& blob : held)
    if (!blobs_.has(blob)) return world_.fail("a peer's machine counts on a blob that its shell has not");
}

// ---- the broker

void PeerHost::connect() {
  const uint64_t attempt = ++connection_;
  network_.dial(options_.node, 0, kConnectDeadline,
                [this, attempt, guarded = process_.guard()](Result<Line> result) {
                  guarded([this, attempt, result] {
                    if (attempt != connection_) {
                      if (result) result->close();
                      return;
                    }
                    if (!result) {
                      world_.note(What::ConnectFailed, options_.node);
                      return act(machine_->on_connect_failed(world_.now(), result.error()));
                    }
                    world_.note(What::Connected, options_.node);
                    line_ = *result;
                    const auto inner = process_.guard();
                    line_.listen({.on_packet =
                                      [this, attempt, inner](const Packet& packet) {
                                        inner([this, attempt, packet] {
                                          if (attempt != connection_) return;
                                          world_.note(What::ToPeer, options_.node, packet.message->index());
                                          if (options_.bug == Bug::ReportDropped &&
                                              std::holds_alternative<proto::ResumeStage>(*packet.message))
                                            report_to_drop_ = true;
                                          if (options_.liar)
                                            for (const auto& lie : options_.liar->answer(*packet.message))
                                              tell_line(lie);
                                          act(machine_->on_message(world_.now(), *packet.message));
                                        });
                                      },
                                  .on_lost =
                                      [this, attempt, inner](const Error& error) {
                                        inner([this, attempt, error] {
                                          if (attempt != connection_) return;
                                          line_ = {};
                                          ++connection_;
                                          act(machine_->on_lost(world_.now(), error));
                                        });
                                      }});
                    act(machine_->on_connected(world_.now()));
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
    checkers_.on_step_report(*report);
    if (report->updated) timings_.tell(*report);
  }
  if (options_.liar) {
    for (const auto& said : options_.liar->say(truth, machine_->assignment().get())) tell_line(said);
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
  world_.after(draw_.between(seconds(1), seconds(20)), [this, life = process_.life()] {
    if (life == process_.life()) start();
  });
}

}  // namespace weft::sim
