#include "sim/links.h"

#include <algorithm>

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr Duration kReadyDeadline = seconds(30);  // for a link to be up the first time
constexpr Duration kHealDeadline = seconds(10);   // and again
constexpr Duration kSilence = seconds(6);         // a connection that brings nothing for so long is given up
constexpr Duration kLate = milliseconds(100);      // how long others may overtake a tensor

// Large ones alone take a line's time, so that a world of small ones is quick to play.
int64_t size_of(const TensorPacket& packet) {
  const int64_t bytes = proto::payload_bytes(packet.header.spec, packet.header.codec).value;
  return bytes >= kTimedSizeMin ? bytes : 2000;
}
}  // namespace

LinkSet::LinkSet(World& world, NodeId node, std::shared_ptr<const proto::AssignStage> assignment, Way way,
                 Handlers handlers, uint64_t seed)
    : world_(world),
      node_(node),
      assignment_(std::move(assignment)),
      way_(std::move(way)),
      handlers_(std::move(handlers)),
      draw_(seed, 0x6c696e6b),
      late_(seed, 0x6c617465) {
  for (const proto::LinkRoute& route : assignment_->links) links_[route.seat].route = route;
}

LinkSet::~LinkSet() {
  for (auto& [seat, link] : links_)
    if (link.line) link.line.close();
}

void LinkSet::start() {
  for (auto& [seat, link] : links_) {
    link.down_since = world_.now();
    if (link.route.dials) dial(link);
  }
  check_all_up();
}

void LinkSet::check_all_up() {
  if (all_up_said_) return;
  for (const auto& [seat, link] : links_)
    if (!link.ready) return;
  all_up_said_ = true;
  world_.note(What::LinksUp, node_);
  world_.after(Duration{}, [guarded = way_.guarded, this] { guarded([this] { handlers_.on_all_up(); }); });
}

void LinkSet::dial(Link& link) {
  if (link.dialling || link.failed || link.line) return;
  link.dialling = true;
  const plan::Seat seat = link.route.seat;
  const auto done = [this, seat](Result<Line> result) {
    Link& here = links_.at(seat);
    here.dialling = false;
    if (world_.traces())
      world_.say("peer " + std::to_string(node_) + " dialled " + plan::to_string(seat) + ": " +
                 (result ? "up" : result.error().message));
    if (result && !here.line) return take(here, *result, /*introduces=*/true);
    if (result) return result->close();
    ++here.attempts;
    world_.after(draw_.between(milliseconds(100), milliseconds(1000)),
                 [guarded = way_.guarded, this, seat] { guarded([this, seat] { dial(links_.at(seat)); }); });
  };
  // In turn: the addresses, the relay.
  if (!link.route.addresses.empty() && link.attempts % 2 == 0)
    way_.dial(link.route, done);
  else
    way_.relay(link.route.relay_ticket, done);
}

void LinkSet::invite(const proto::Secret& ticket) {
  for (auto& [seat, link] : links_)
    if (!link.route.dials && link.route.relay_ticket == ticket)
      way_.relay(ticket, [this, at = seat](Result<Line> result) {
        if (world_.traces())
          world_.say("peer " + std::to_string(node_) + " came to the relay for " + plan::to_string(at) +
                     ": " + (result ? "up" : result.error().message));
        Link& here = links_.at(at);
        if (result && !here.failed) take(here, *result, /*introduces=*/false);
      });
}

void LinkSet::say(Link& link, proto::Message message) {
  link.said = world_.now();
  link.line.send(
      {.message = std::make_shared<const proto::Message>(std::move(message)), .tensor = {}, .size = 60});
}

uint64_t LinkSet::tell_received(Link& link, bool connects) {
  const uint64_t received = link.receipts.tell_received();
  if (takes_again_ && connects) return link.told;
  link.told = received;
  return received;
}

// Handlers of a line live longer than this: they go through `guarded`.
void LinkSet::take(Link& link, const Line& line, bool introduces) {
  if (link.line) link.line.close();
  link.line = line;
  link.ready = false;
  link.heard = world_.now();
  const uint64_t connection = ++link.connections;
  const plan::Seat seat = link.route.seat;
  line.listen(
      {.on_packet =
           [guarded = way_.guarded, this, seat, connection](const Packet& packet) {
             guarded([this, seat, connection, packet] { on_packet(links_.at(seat), connection, packet); });
           },
       .on_lost =
           [guarded = way_.guarded, this, seat, connection](const Error& error) {
             guarded([this, seat, connection, why = error.message] {
               Link& here = links_.at(seat);
               if (here.connections == connection && here.line) down(here, why);
             });
           },
       .on_part =
           [guarded = way_.guarded, this, seat, connection] {
             guarded([this, seat, connection] {
               if (Link& here = links_.at(seat); here.connections == connection) here.heard = world_.now();
             });
           }});
  if (introduces)
    say(link, proto::LinkHello{assignment_->run, assignment_->plan_version, assignment_->seat,
                               tell_received(link, true)});
}

bool LinkSet::wants(const proto::LinkHello& hello) const {
  return hello.run == assignment_->run && hello.plan_version == assignment_->plan_version &&
         links_.contains(hello.seat) && !links_.at(hello.seat).failed;
}

bool LinkSet::offer(const Line& line, NodeId, const proto::LinkHello& hello) {
  if (!wants(hello)) return false;
  Link& link = links_.at(hello.seat);
  take(link, line, /*introduces=*/false);
  say(link, proto::LinkReady{tell_received(link, true)});
  resume(link, hello.received);
  return true;
}

void LinkSet::resume(Link& link, uint64_t received) {
  if (const Status status = link.ledger.resume(received); !status) return down(link, status.error().message);
  link.ready = link.was_up = true;
  link.attempts = 0;
  for (uint64_t number = link.ledger.acknowledged(); number < link.ledger.sent(); ++number)
    send_over_line(link, number, link.ledger.kept(number));
  link.said = world_.now();
  check_all_up();
}

void LinkSet::on_packet(Link& link, uint64_t connection, const Packet& packet) {
  if (link.connections != connection || !link.line) return;
  link.heard = world_.now();
  if (packet.tensor) {
    if (late_.below(3) != 0) return on_tensor(link, packet);
    // Its pieces come over several connections, or what is more urgent comes between them: those sent after
    // it may be there first. Lost before that, it has not come.
    const plan::Seat seat = link.route.seat;
    world_.after(late_.between(milliseconds(1), kLate),
                 [guarded = way_.guarded, this, seat, connection, packet] {
                   guarded([this, seat, connection, packet] {
                     Link& here = links_.at(seat);
                     if (here.connections == connection && here.line) on_tensor(here, packet);
                   });
                 });
    return;
  }
  if (const auto* hello = std::get_if<proto::LinkHello>(packet.message.get())) {  // over a relay
    if (!wants(*hello)) return down(link, "a link that is not of this plan");
    say(link, proto::LinkReady{tell_received(link, true)});
    resume(link, hello->received);
  } else if (const auto* is_ready = std::get_if<proto::LinkReady>(packet.message.get())) {
    resume(link, is_ready->received);
  } else if (const auto* ack = std::get_if<proto::LinkAck>(packet.message.get())) {
    if (!link.ledger.acknowledged(ack->received)) down(link, "it acknowledges what was not sent");
  }
}

void LinkSet::on_tensor(Link& link, const Packet& packet) {
  const plan::Seat seat = link.route.seat;
  const auto tensor = packet.tensor;
  if (link.receipts.has_received(packet.number)) {
    if (takes_again_) handlers_.on_tensor(seat, *tensor, true);
    return;
  }
  const bool ack = link.receipts.count_received(packet.number, static_cast<uint64_t>(packet.size));
  if (ack) say(link, proto::LinkAck{tell_received(link, false)});
  handlers_.on_tensor(seat, *tensor, false);
}

void LinkSet::send_over_line(Link& link, uint64_t number, const TensorPacket& packet) {
  link.line.send({.message = {},
                  .tensor = std::make_shared<const TensorPacket>(packet),
                  .size = size_of(packet),
                  .number = number});
}

void LinkSet::down(Link& link, const std::string& why) {
  (void)why;
  if (link.line) link.line.close();
  link.line = {};
  ++link.connections;
  if (link.ready || !link.was_up) {
    if (link.ready) link.down_since = world_.now();
    world_.note(What::LinkDown, node_, link.route.seat.stage);
  }
  link.ready = false;
  if (!link.route.dials || link.failed) return;
  const plan::Seat seat = link.route.seat;
  world_.after(draw_.between(milliseconds(50), milliseconds(500)),
               [guarded = way_.guarded, this, seat] { guarded([this, seat] { dial(links_.at(seat)); }); });
}

void LinkSet::send(plan::Seat seat, TensorPacket packet) {
  Link& link = links_.at(seat);
  const int64_t size = size_of(packet);
  const Status kept = link.ledger.keep(packet, static_cast<uint64_t>(size));
  if (!kept) world_.fail("a link keeps too much: " + kept.error().message);
  kept_max_ = std::max(kept_max_, link.ledger.kept_frames());
  if (!link.ready) return;
  link.said = world_.now();
  send_over_line(link, link.ledger.sent() - 1, packet);
}

void LinkSet::on_tick() {
  for (auto& [seat, link] : links_) {
    if (link.failed) continue;
    if (link.line && world_.now() - link.heard > kSilence) down(link, "nothing came");
    if (link.ready) {
      if (world_.now() - link.said >= seconds(2)) say(link, proto::LinkAck{tell_received(link, false)});
      continue;
    }
    if (world_.now() - link.down_since <= (link.was_up ? kHealDeadline : kReadyDeadline)) continue;
    link.failed = true;
    world_.note(What::LinkFailed, node_, seat.stage);
    way_.guarded([this, at = seat] {
      handlers_.on_failed(at, {ErrorCode::Unavailable, "the link cannot be had again"});
    });
  }
}

}  // namespace weft::sim
