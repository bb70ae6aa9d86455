#include "sim/broker_host.h"

#include <algorithm>

#include "base/overloaded.h"
#include "broker/jobs/answers.h"

namespace weft::sim {

using broker::ConnectionId;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr Duration kTick = milliseconds(500);
constexpr Duration kCollectEvery = seconds(60);
constexpr Duration kRelayWait = seconds(10);

// What tells messages of one kind apart, for the trace.
uint64_t number_of(const proto::Message& message) {
  return std::visit(
      [](const auto& m) -> uint64_t {
        if constexpr (requires {
                        m.step;
                        m.sequence;
                      })
          return (static_cast<uint64_t>(m.sequence) << 32) | static_cast<uint64_t>(m.step);
        else if constexpr (requires { m.step; })
          return static_cast<uint64_t>(m.step);
        else if constexpr (requires { m.sequence; })
          return static_cast<uint64_t>(m.sequence);
        else if constexpr (requires { m.plan_version; })
          return m.plan_version;
        else
          return 0;
      },
      message);
}

int64_t size_of(const proto::Message& message) {
  if (std::holds_alternative<proto::AssignStage>(message)) return 8000;
  if (const auto* report = std::get_if<proto::CheckpointReport>(&message))
    return 100 + 80 * static_cast<int64_t>(report->tensors.size());
  if (const auto* list = std::get_if<proto::StandBy>(&message))
    return 100 + 80 * static_cast<int64_t>(list->tensors.size());
  return 150;
}

}  // namespace

BrokerHost::BrokerHost(World& world, Network& network, SimStore& store, SimBlobs& blobs, Checkers& checkers,
                       const std::vector<JobSpec>& specs, Options options, uint64_t seed)
    : world_(world),
      network_(network),
      store_(store),
      blobs_(blobs),
      checkers_(checkers),
      specs_(specs),
      options_(std::move(options)),
      draw_(seed, 0x62726f6b) {}

NodeId BrokerHost::node_of(const PeerId& key) const {
  const auto at = std::find_if(keys_.begin(), keys_.end(), [&](const auto& e) { return e.second == key; });
  return at == keys_.end() ? 0 : at->first;
}

broker::Now BrokerHost::now() const {
  return {world_.now(), unix_offset_ms_ + world_.now().time_since_epoch() / milliseconds(1)};
}

void BrokerHost::run(std::function<void()> action) {
  if (frozen_)
    backlog_.push_back(std::move(action));
  else
    action();
}

void BrokerHost::serve(std::function<void()> action) {
  run([this, life = life_, action = std::move(action)] {
    if (life == life_ && core_) action();
  });
}

void BrokerHost::start() {
  ++life_;
  world_.note(What::BrokerStarts, life_);
  blobs_.wipe_transient();
  core_ = std::make_unique<broker::Broker>(options_.broker, *store_.load());
  checkers_.on_broker_started();
  network_.set_acceptor(0, [this](Line line, Network::Accepted accepted) {
    run([this, line, accepted, life = life_] {
      if (life == life_ && core_) accept(line, accepted);
    });
  });
  tick();
}

void BrokerHost::crash() {
  if (!core_) return;
  // What the kernel was given in the middle of an append is there as a whole or not at all.
  bool kept = false;
  if (committing_ && !store_.full() && draw_.one_in(2)) {
    kept = true;
    if (store_.append(turn_.to_append())) checkers_.on_durable(turn_.to_append());
  }
  world_.note(What::BrokerCrashes, life_, kept);
  ++life_;
  core_.reset();
  frozen_ = false;
  crashed_ = nullptr;
  backlog_.clear();
  inbox_.clear();
  turn_ = {};
  spoken_.clear();
  committing_ = turn_scheduled_ = false;
  clients_.clear();
  feeds_.clear();
  tickets_.clear();
  for (auto& [ticket, relayed] : std::exchange(waiting_, {})) relayed.joined(std::nullopt);
  planner_free_ = {};
  resumed_.clear();
  added_.clear();
  network_.drop_node(0, /*silent=*/false);
}

void BrokerHost::freeze(bool frozen) {
  frozen_ = frozen;
  if (frozen) return;
  for (auto& action : std::exchange(backlog_, {})) action();
}

void BrokerHost::set_disk_full(bool full) {
  store_.set_full(full);
  blobs_.set_full(full);
}

void BrokerHost::accept(Line line, Network::Accepted accepted) {
  const ConnectionId id = next_connection_++;
  clients_[id] = {line, false};
  line.listen({.on_packet =
                   [this, id, life = life_](const Packet& packet) {
                     run([this, id, life, packet] {
                       if (life == life_) on_packet(id, packet);
                     });
                   },
               .on_lost =
                   [this, id, life = life_](const Error& error) {
                     run([this, id, life, reason = error.message] {
                       if (life != life_ || clients_.erase(id) == 0) return;
                       checkers_.on_connection_ended(id);
                       enqueue(broker::Disconnected{id, reason});
                     });
                   }});
  accepted();
}

void BrokerHost::on_packet(ConnectionId id, const Packet& packet) {
  const auto client = clients_.find(id);
  if (client == clients_.end()) return;
  const NodeId node = client->second.line.other();
  world_.note(What::ToBroker, node, packet.message->index(), number_of(*packet.message));
  if (client->second.introduced) {
    broker::Received received{id, packet.message};
    if (const auto* report = std::get_if<proto::CheckpointReport>(packet.message.get()))
      received.blobs_missing = static_cast<uint32_t>(
          std::count_if(report->tensors.begin(), report->tensors.end(),
                        [&](const auto& tensor) { return !blobs_.has(tensor.sha256); }));
    return enqueue(std::move(received));
  }
  const auto* hello = std::get_if<proto::Hello>(packet.message.get());
  if (hello == nullptr)
    return world_.fail("a connection began with " + std::string(name_of(*packet.message)));
  client->second.introduced = true;
  enqueue(broker::Introduced{.connection = id,
                             .who = keys_.at(node),
                             .address = "node " + std::to_string(node),
                             .hello = *hello,
                             .verdict = broker::TokenVerdict::Valid});
}

void BrokerHost::enqueue(broker::Event event) {
  inbox_.push_back(std::move(event));
  if (turn_scheduled_ || committing_) return;
  turn_scheduled_ = true;
  world_.after(Duration{}, [this, life = life_] {
    if (life == life_)
      run([this, life] {
        if (life == life_ && core_) turn();
      });
  });
}

void BrokerHost::tick() {
  enqueue(broker::Tick{});
  if (world_.now() >= next_collection_) {
    next_collection_ = world_.now() + kCollectEvery;
    std::set<Digest> kept = core_->referenced_blobs();
    kept.merge(store_.blobs_of_ended(0).value());
    blobs_.collect(kept, world_.now());
  }
  world_.after(kTick, [this, life = life_] {
    if (life == life_)
      run([this, life] {
        if (life == life_ && core_) tick();
      });
  });
}

void BrokerHost::step(const broker::Event& event) {
  const bool punctual = world_.now() - ticked_ <= 2 * kTick;  // else leases are looked at with the next tick
  if (std::holds_alternative<broker::Tick>(event)) ticked_ = world_.now();
  broker::Effects effects = core_->step(now(), event);
  if (const Status checked = core_->check(); !checked) world_.fail(checked.error().message);
  if (punctual)
    for (const broker::Effect& effect : effects.effects)
      if (const auto* peers = std::get_if<broker::PublishPeers>(&effect))
        checkers_.on_peers_published(peers->peers, seconds(10));
  if (options_.bug == Bug::EffectsBeforeDurable)
    for (const broker::Effect& effect : effects.effects)
      if (const auto* message = std::get_if<broker::Send>(&effect)) spoken_.push_back(*message);
  turn_.add(event, std::move(effects));
}

void BrokerHost::turn() {
  turn_scheduled_ = false;
  if (committing_) return;
  while (!inbox_.empty()) {
    const broker::Event event = std::move(inbox_.front());
    inbox_.pop_front();
    step(event);
  }
  commit();
}

Duration BrokerHost::append_time() {
  if (slow_disk_) return draw_.doubling(milliseconds(200), seconds(4));
  return draw_.between(options_.append_low, options_.append_high);
}

void BrokerHost::commit() {
  if (turn_.to_append().empty()) return finish_turn();
  committing_ = true;
  // Spoken at once; written when the disk gets to it.
  for (const broker::Send& message : spoken_) send(message);
  const Duration time = append_time();
  world_.note(What::Append, turn_.to_append().size(), static_cast<uint64_t>(time.count()));
  world_.after(time, [this, life = life_] { append(life); });
  if (!crashed_) return;
  world_.after(draw_.between(Duration{}, time),
               [this, life = life_, crashed = std::exchange(crashed_, nullptr)] {
                 if (life != life_) return;
                 crash();
                 crashed();
               });
}

void BrokerHost::append(uint64_t life) {
  if (life != life_) return;
  if (frozen_) return backlog_.push_back([this, life] { append(life); });
  const std::span<const broker::Record> records = turn_.to_append();
  const Status durable = store_.append(records);
  const bool forgets = !durable && options_.bug == Bug::DiskFullForgets;
  switch (turn_.on_appended(forgets ? Status{} : durable)) {
    case broker::Turn::Verdict::Durable:
      if (!forgets) checkers_.on_durable(records);
      break;
    case broker::Turn::Verdict::Refused:
      break;
    case broker::Turn::Verdict::Waits:
      world_.note(What::AppendRefused, records.size());
      return world_.after(broker::kDiskFullRetry, [this, life] { append(life); });
    case broker::Turn::Verdict::Ends:
      return world_.fail("the store is broken: " + durable.error().message);
  }
  if (!turn_.to_append().empty()) return append(life);
  committing_ = false;
  finish_turn();
  if (!inbox_.empty() && life == life_) turn();
}

void BrokerHost::finish_turn() {
  broker::Turn::Done done = turn_.finish();
  const bool spoken = !std::exchange(spoken_, {}).empty() && !done.records.empty();
  for (broker::Turn::Part& part : done.parts) {
    if (part.is_refused && part.sender) close(*part.sender);
    if (part.is_refused) continue;
    for (broker::Effect& effect : part.effects)
      if (!spoken || !std::holds_alternative<broker::Send>(effect)) carry_out(effect);
  }
}

void BrokerHost::carry_out(broker::Effect& effect) {
  std::visit(
      Overloaded{
          [&](broker::Send& e) { send(e); },
          [&](broker::Admit&) {},
          [&](broker::Close& e) { close(e.connection); },
          [&](broker::CloseAll&) {},
          [&](broker::CheckSubmission& e) {
            world_.after(draw_.between(milliseconds(1), milliseconds(50)), [this, life = life_, e] {
              if (life != life_) return;
              run([this, life, e] {
                if (life == life_) enqueue(broker::SubmissionChecked{e.connection, e.submission, {}});
              });
            });
          },
          [&](broker::StartPlanning& e) { plan(std::move(e)); },
          [&](broker::Reconsider& e) { reconsider(std::move(e)); },
          [&](broker::OpenFeed& e) {
            feeds_[e.job] = {e.data_key, options_.bug == Bug::DataShifted && plans_[e.job] >= 1};
          },
          [&](broker::CloseFeed& e) { feeds_.erase(e.job); },
          [&](broker::GrantRelay& e) { tickets_.insert(e.ticket); },
          [&](broker::RevokeRelay& e) {
            tickets_.erase(e.ticket);
            if (const auto at = waiting_.find(e.ticket); at != waiting_.end()) {
              const Joined joined = std::move(at->second.joined);
              waiting_.erase(at);
              joined(std::nullopt);
            }
          },
          [&](broker::ForgetJob&) {},
          [&](broker::AnswerFromStore& e) {
            send({e.connection, std::make_shared<const proto::Message>(answer_from_store(store_, e))});
          },
          [&](broker::SendJobs& e) {
            send({e.connection, std::make_shared<const proto::Message>(list_jobs(store_, std::move(e)))});
          },
          [&](broker::ReopenJob& e) {
            enqueue(broker::JobReopened{e.connection, reopen(store_, e)});
          },
          [&](broker::VerifyBlobs& e) {
            const auto bad = std::count_if(e.blobs.begin(), e.blobs.end(),
                                           [&](const Digest& blob) { return !blobs_.has(blob); });
            enqueue(broker::BlobsVerified{e.job, e.step, static_cast<size_t>(bad)});
          },
          [&](broker::PublishPeers&) {},
          [&](broker::PublishServed&) {},
          [&](broker::SendEvents&) {},
          [&](broker::KeepTransient& e) {
            blobs_.keep_transient({e.blobs.begin(), e.blobs.end()}, world_.now());
          },
          [&](broker::Log& e) {
            if (world_.traces()) world_.say("broker: " + e.line);
          },
      },
      effect);
}

void BrokerHost::close(ConnectionId connection) {
  const auto client = clients_.find(connection);
  if (client == clients_.end()) return;
  client->second.line.close();
  clients_.erase(client);
  checkers_.on_connection_ended(connection);
  enqueue(broker::Disconnected{connection, "closed"});
}

void BrokerHost::send(const broker::Send& effect) {
  const auto client = clients_.find(effect.connection);
  if (client == clients_.end()) return;
  std::shared_ptr<const proto::Message> message = effect.message;
  const PeerId& key = keys_.at(client->second.line.other());
  if (std::holds_alternative<proto::AssignStage>(*message))
    ++plans_[std::get<proto::AssignStage>(*message).run];
  if (options_.bug != Bug::None) {
    if (std::holds_alternative<proto::ResumeStage>(*message)) resumed_.insert(effect.connection);
    if (const auto* norm = std::get_if<proto::GradientNorm>(message.get());
        norm != nullptr && options_.bug == Bug::WrongNorm) {
      const auto run = std::pair(norm->run, norm->plan_version);
      auto wrong = *norm;
      if (const auto last = last_norm_.find({norm->run, norm->plan_version}); last != last_norm_.end())
        wrong.norm = last->second;
      last_norm_[run] = norm->norm;
      message = std::make_shared<const proto::Message>(wrong);
    }
    if (const auto* command = std::get_if<proto::Command>(message.get());
        command != nullptr && options_.bug == Bug::CommandTwice) {
      auto copy = *command;
      copy.sequence += added_[effect.connection];
      message = std::make_shared<const proto::Message>(copy);
      if (resumed_.erase(effect.connection) != 0) {
        checkers_.on_sent(key, effect.connection, *message);
        client->second.line.send({.message = message});
        ++added_[effect.connection];
        ++copy.sequence;
        message = std::make_shared<const proto::Message>(copy);
      }
    }
  }
  checkers_.on_sent(key, effect.connection, *message);
  client->second.line.send({.message = message, .tensor = {}, .size = size_of(*message)});
}

Result<int64_t> BrokerHost::blob_size(const Digest& blob) const {
  if (const auto size = blobs_.size(blob)) return *size;
  return fail(ErrorCode::NotFound, "there is no such blob");
}

Status BrokerHost::put_blob(const Digest& blob, int64_t size, bool durable) {
  return blobs_.put(blob, size, durable && options_.bug != Bug::TransientCalledDurable, world_.now());
}

std::vector<Digest> BrokerHost::missing(const std::vector<Digest>& blobs, bool durable) {
  std::vector<Digest> missing;
  for (const Digest& blob : blobs)
    if (!blobs_.ask(blob, world_.now()) ||
        (durable && options_.bug != Bug::TransientCalledDurable && !blobs_.make_durable(blob, world_.now())))
      missing.push_back(blob);
  return missing;
}

Result<uint64_t> BrokerHost::microbatch(proto::JobNumber job, const proto::Secret& key,
                                        const proto::AssignStage& assignment, proto::ProgramKind program,
                                        uint64_t step, uint32_t microbatch) const {
  const auto feed = feeds_.find(job);
  if (feed == feeds_.end() || feed->second.key != key)
    return fail(ErrorCode::PermissionDenied, "no such feed");
  const uint32_t size = assignment.training.microbatch_size;
  const uint64_t batch = assignment.training.batch_size;
  uint64_t position = uint64_t{microbatch} * size;
  if (program == proto::ProgramKind::Train) position += (step - 1) * batch;
  if (feed->second.shifted && program == proto::ProgramKind::Train) position += size;
  return position;
}

void BrokerHost::relay(NodeId from, const proto::Secret& ticket, Joined joined) {
  if (!tickets_.contains(ticket)) return joined(std::nullopt);
  const auto other = waiting_.find(ticket);
  if (other != waiting_.end() && other->second.node != from) {
    const Relayed first = std::move(other->second);
    waiting_.erase(other);
    const auto [a, b] = network_.join_by_relay(first.node, from);
    first.joined(a);
    joined(b);
    return;
  }
  if (other != waiting_.end()) {
    const Joined before = std::move(other->second.joined);
    waiting_.erase(other);
    before(std::nullopt);
  }
  const uint64_t number = ++relays_;
  waiting_[ticket] = {from, std::move(joined), number};
  world_.after(kRelayWait, [this, ticket, number, life = life_] {
    const auto at = waiting_.find(ticket);
    if (life != life_ || at == waiting_.end() || at->second.number != number) return;
    const Joined call = std::move(at->second.joined);
    waiting_.erase(at);
    call(std::nullopt);
  });
  enqueue(broker::RelayWaiting{ticket});
}

}  // namespace weft::sim
