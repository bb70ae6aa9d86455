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
      options_(std::move(options)),
      draw_(seed, 0x62726f6b),
      relay_(world, network),
      planner_(world, blobs, specs, draw_,
               {.by_pace = options_.plans_by_pace, .copy_rate = options_.broker.run.copy_rate}),
      bugs_(options_.bug) {}

NodeId BrokerHost::node_of(const PeerId& key) const {
  const auto at = std::find_if(keys_.begin(), keys_.end(), [&](const auto& e) { return e.second == key; });
  return at == keys_.end() ? 0 : at->first;
}

broker::Now BrokerHost::now() const {
  return {world_.now(), unix_offset_ms_ + world_.now().time_since_epoch() / milliseconds(1)};
}

void BrokerHost::serve(std::function<void()> action) {
  if (core_) process_.run(std::move(action));
}

void BrokerHost::start() {
  process_.begin();
  world_.note(What::BrokerStarts, process_.life());
  blobs_.wipe_transient();
  core_ = std::make_unique<broker::Broker>(options_.broker, *store_.load());
  checkers_.on_broker_started();
  network_.set_acceptor(0, [this](const Line& line, const Network::Accepted& accepted) {
    if (core_) process_.run([this, line, accepted] { accept(line, accepted); });
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
  world_.note(What::BrokerCrashes, process_.life(), kept);
  process_.end();
  core_.reset();
  crashed_ = nullptr;
  inbox_.clear();
  turn_ = {};
  committing_ = turn_scheduled_ = false;
  clients_.clear();
  feeds_.clear();
  relay_.end();
  planner_.end();
  bugs_.end();
  network_.drop_node(0, /*silent=*/false);
}

void BrokerHost::freeze(bool frozen) {
  if (frozen)
    process_.freeze();
  else
    process_.thaw();
}

void BrokerHost::set_disk_full(bool full) {
  store_.set_full(full);
  blobs_.set_full(full);
}

void BrokerHost::accept(const Line& line, const Network::Accepted& accepted) {
  const ConnectionId id = next_connection_++;
  clients_[id] = {line, false};
  const auto guarded = process_.guard();
  line.listen(
      {.on_packet = [this, id, guarded](
                        const Packet& packet) { guarded([this, id, packet] { on_packet(id, packet); }); },
       .on_lost =
           [this, id, guarded](const Error& error) {
             guarded([this, id, reason = error.message] {
               if (clients_.erase(id) == 0) return;
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
  checkers_.on_heard(keys_.at(node), *packet.message);
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
  world_.after(Duration{}, [this, guarded = process_.guard()] { guarded([this] { turn(); }); });
}

BrokerPlanner::Done BrokerHost::enqueued() {
  return [this, guarded = process_.guard()](broker::Event event) {
    guarded([this, event = std::move(event)] { enqueue(event); });
  };
}

void BrokerHost::tick() {
  enqueue(broker::Tick{});
  if (world_.now() >= next_collection_) {
    next_collection_ = world_.now() + kCollectEvery;
    std::set<Digest> kept = core_->referenced_blobs();
    kept.merge(store_.blobs_of_ended(0).value());
    blobs_.collect(kept, world_.now());
  }
  world_.after(kTick, [this, guarded = process_.guard()] { guarded([this] { tick(); }); });
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
  bugs_.note(effects.effects);
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
  for (const broker::Send& message : bugs_.said_early()) send(message);
  const Duration time = append_time();
  world_.note(What::Append, turn_.to_append().size(), static_cast<uint64_t>(time.count()));
  world_.after(time, [this, guarded = process_.guard()] { guarded([this] { append(); }); });
  if (!crashed_) return;
  world_.after(draw_.between(Duration{}, time),
               [this, life = process_.life(), crashed = std::exchange(crashed_, nullptr)] {
                 if (life != process_.life()) return;
                 crash();
                 crashed();
               });
}

void BrokerHost::append() {
  const uint64_t life = process_.life();
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
      return world_.after(broker::kDiskFullRetry,
                          [this, guarded = process_.guard()] { guarded([this] { append(); }); });
    case broker::Turn::Verdict::Ends:
      return world_.fail("the store is broken: " + durable.error().message);
  }
  if (!turn_.to_append().empty()) return append();
  committing_ = false;
  finish_turn();
  if (!inbox_.empty() && life == process_.life()) turn();
}

void BrokerHost::finish_turn() {
  broker::Turn::Done done = turn_.finish();
  const bool spoken = bugs_.end_turn() && !done.records.empty();
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
            world_.after(draw_.between(milliseconds(1), milliseconds(50)), [done = enqueued(), e] {
              done(broker::SubmissionChecked{e.connection, e.submission, {}});
            });
          },
          [&](broker::StartPlanning& e) {
            bugs_.mistake(e);
            planner_.plan(std::move(e), enqueued());
          },
          [&](broker::Reconsider& e) { planner_.reconsider(std::move(e), enqueued()); },
          [&](broker::OpenFeed& e) {
            feeds_[e.job] = {e.data_key, bugs_.shifts(e.job)};
          },
          [&](broker::CloseFeed& e) { feeds_.erase(e.job); },
          [&](broker::GrantRelay& e) { relay_.grant(e.ticket); },
          [&](broker::RevokeRelay& e) { relay_.revoke(e.ticket); },
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
          [&](broker::KeepBlobs& e) {
            enqueue(broker::BlobsKept{e.job, e.step, blobs_.make_durable(e.blobs, world_.now())});
          },
          [&](broker::PublishPeers&) {},
          [&](broker::PublishServed&) {},
          [&](broker::SendEvents&) {},
          [&](broker::KeepTransient& e) {
            blobs_.keep_transient({e.blobs.begin(), e.blobs.end()}, world_.now(), e.young);
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
  const Line& line = client->second.line;
  const PeerId& key = keys_.at(line.other());
  for (const Packet& packet : bugs_.say(
           effect.connection, {.message = effect.message, .tensor = {}, .size = size_of(*effect.message)})) {
    checkers_.on_sent(key, effect.connection, *packet.message);
    line.send(packet);
  }
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

void BrokerHost::relay(NodeId from, const proto::Secret& ticket, Relay::Joined joined) {
  if (relay_.come(from, ticket, std::move(joined))) enqueue(broker::RelayWaiting{ticket});
}

}  // namespace weft::sim
