#include "sim/links.h"

#include <algorithm>

#include "base/overloaded.h"

namespace weft::sim {

using std::chrono::milliseconds;

namespace {
constexpr Duration kLate = milliseconds(100);  // how long others may overtake a tensor

// Large ones alone take a line's time, so that a world of small ones is quick to play.
int64_t size_of(const TensorPacket& packet) {
  const int64_t bytes = proto::payload_bytes(packet.header.spec, packet.header.codec).value;
  return bytes >= kTimedSizeMin ? bytes : 2000;
}
}  // namespace

LinkSet::LinkSet(World& world, NodeId node, std::shared_ptr<const proto::AssignStage> assignment,
                 Connector connector, Handlers handlers, uint64_t seed)
    : world_(world),
      node_(node),
      assignment_(std::move(assignment)),
      connector_(std::move(connector)),
      handlers_(std::move(handlers)),
      draw_(seed, 0x6c696e6b),
      late_(seed, 0x6c617465) {
  for (const proto::LinkRoute& route : assignment_->links) {
    Link& link = links_[route.seat];
    // One connection stands for all that a link may have.
    link.machine = std::make_unique<Machine>(
        Machine::Options{.times = {}, .streams = 1, .draw_session = [this] { return draw_.next(); }},
        *assignment_, route, link.outbox);
  }
}

LinkSet::~LinkSet() {
  for (auto& [seat, link] : links_)
    for (auto& [number, line] : link.lines) line.close();
}

void LinkSet::start() {
  for (auto& [seat, link] : links_) act(link, link.machine->start(world_.now()));
  check_all_up();
}

bool LinkSet::are_all_up() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.machine->was_up(); });
}

void LinkSet::check_all_up() {
  if (all_up_said_ || !are_all_up()) return;
  all_up_said_ = true;
  world_.note(What::LinksUp, node_);
  world_.after(Duration{},
               [guarded = connector_.guarded, this] { guarded([this] { handlers_.on_all_up(); }); });
}

void LinkSet::act(Link& link, Machine::Effects effects) {
  for (peer::link_effects::Effect& effect : effects) {
    if (link.failed) return;
    std::visit(Overloaded{
                   [&](const peer::link_effects::Dial& e) { dial(link, e.address, e.deadline); },
                   [&](const peer::link_effects::StopDialling&) { ++link.attempt; },
                   [](const peer::link_effects::DialStream&) {},
                   [&](const peer::link_effects::Wake& e) {
                     const plan::Seat seat = link.machine->route().seat;
                     world_.after(e.after, [guarded = connector_.guarded, this, seat, wake = ++link.wake] {
                       guarded([this, seat, wake] {
                         Link& here = links_.at(seat);
                         if (here.wake == wake) act(here, here.machine->on_wake(world_.now()));
                       });
                     });
                   },
                   [&](const peer::link_effects::Say& e) { say(link, e); },
                   [&](const peer::link_effects::Begin& e) { begin(link, e); },
                   [](const peer::link_effects::BeginStream&) {},
                   [&](const peer::link_effects::EndSession&) {
                     link.carries = 0;
                     world_.note(What::LinkDown, node_, link.machine->route().seat.stage);
                   },
                   [&](const peer::link_effects::Close& e) {
                     if (const auto at = link.lines.find(e.connection); at != link.lines.end()) {
                       at->second.close();
                       link.lines.erase(at);
                     }
                   },
                   [&](const peer::link_effects::Fail& e) { fail(link, e.error); },
               },
               effect);
  }
}

// The others go on: its replica may be left out.
void LinkSet::fail(Link& link, const Error& error) {
  link.failed = true;
  const plan::Seat seat = link.machine->route().seat;
  world_.note(What::LinkFailed, node_, seat.stage);
  connector_.guarded([this, seat, error] { handlers_.on_failed(seat, error); });
}

void LinkSet::dial(Link& link, const std::string& address, Duration deadline) {
  const plan::Seat seat = link.machine->route().seat;
  const auto done = [this, seat, attempt = ++link.attempt](Result<Line> result) {
    if (world_.traces())
      world_.say("peer " + std::to_string(node_) + " dialled " + plan::to_string(seat) + ": " +
                 (result ? "up" : result.error().message));
    Link& here = links_.at(seat);
    if (here.attempt != attempt || here.failed) {
      if (result) result->close();
      return;
    }
    act(here, here.machine->on_dialled(world_.now(), result ? Result<uint64_t>(take(here, *result))
                                                            : Result<uint64_t>(weft::fail(result.error()))));
  };
  if (address.empty())
    connector_.relay(link.machine->route().relay_ticket, deadline, done);
  else
    connector_.dial(address, deadline, done);
}

void LinkSet::invite(const proto::Secret& ticket) {
  for (auto& [seat, link] : links_) act(link, link.machine->on_invited(world_.now(), ticket));
}

void LinkSet::say(Link& link, const peer::link_effects::Say& effect) {
  const auto line = link.lines.find(effect.connection);
  if (line == link.lines.end()) return;
  proto::Message message = effect.message;
  std::visit(
      [&]<typename M>(M& m) {
        if constexpr (requires { m.received; }) {
          if (takes_again_ && !std::is_same_v<M, proto::LinkAck>) m.received = link.told;
          link.told = m.received;
        }
      },
      message);
  line->second.send(
      {.message = std::make_shared<const proto::Message>(std::move(message)), .tensor = {}, .size = 60});
}

// Handlers of a line live longer than this: they go through `guarded`.
uint64_t LinkSet::take(Link& link, const Line& line) {
  const uint64_t number = ++lines_;
  link.lines[number] = line;
  const plan::Seat seat = link.machine->route().seat;
  line.listen({.on_packet =
                   [guarded = connector_.guarded, this, seat, number](const Packet& packet) {
                     guarded([this, seat, number, packet] { on_packet(links_.at(seat), number, packet); });
                   },
               .on_lost =
                   [guarded = connector_.guarded, this, seat, number](const Error& error) {
                     guarded([this, seat, number, error] {
                       Link& here = links_.at(seat);
                       if (here.lines.contains(number))
                         act(here, here.machine->on_lost(world_.now(), number, error));
                     });
                   },
               .on_part =
                   [guarded = connector_.guarded, this, seat, number] {
                     guarded(
                         [this, seat, number] { links_.at(seat).machine->on_bytes(world_.now(), number); });
                   }});
  return number;
}

bool LinkSet::offer(const Line& line, const PeerId& who, const proto::LinkHello& hello) {
  const auto at = links_.find(hello.seat);
  if (at == links_.end() || at->second.failed || !at->second.machine->wants(who, hello)) return false;
  Link& link = at->second;
  const uint64_t number = take(link, line);
  act(link, link.machine->on_accepted(world_.now(), number, hello));
  return true;
}

void LinkSet::begin(Link& link, const peer::link_effects::Begin& effect) {
  link.carries = effect.connection;
  auto& ledger = link.outbox.ledger;
  for (uint64_t number = ledger.acknowledged(); number < ledger.sent(); ++number)
    send_over_line(link, number, ledger.kept(number));
  check_all_up();
}

void LinkSet::on_packet(Link& link, uint64_t number, const Packet& packet) {
  if (link.failed || !link.lines.contains(number)) return;
  link.machine->on_bytes(world_.now(), number);
  if (!packet.tensor) return act(link, link.machine->on_message(world_.now(), number, *packet.message));
  if (late_.below(3) != 0) return on_tensor(link, number, packet);
  // Its pieces come over several connections, or what is more urgent comes between them: those sent after
  // it may be there first. Lost before that, it has not come.
  world_.after(late_.between(milliseconds(1), kLate),
               [guarded = connector_.guarded, this, seat = link.machine->route().seat, number, packet] {
                 guarded([this, seat, number, packet] { on_tensor(links_.at(seat), number, packet); });
               });
}

void LinkSet::on_tensor(Link& link, uint64_t number, const Packet& packet) {
  if (link.failed || !link.machine->carries(number)) return;
  const plan::Seat seat = link.machine->route().seat;
  if (link.machine->has_received(packet.number)) {
    if (takes_again_) handlers_.on_tensor(seat, *packet.tensor, true);
    return;
  }
  act(link, link.machine->on_tensor(world_.now(), packet.number, static_cast<uint64_t>(packet.size)));
  handlers_.on_tensor(seat, *packet.tensor, false);
}

void LinkSet::send_over_line(Link& link, uint64_t number, const TensorPacket& packet) {
  link.lines.at(link.carries)
      .send({.message = {},
             .tensor = std::make_shared<const TensorPacket>(packet),
             .size = size_of(packet),
             .number = number});
}

void LinkSet::send(plan::Seat seat, const TensorPacket& packet) {
  Link& link = links_.at(seat);
  if (link.failed) return;
  const int64_t size = size_of(packet);
  const Status kept = link.outbox.ledger.keep(packet, static_cast<uint64_t>(size));
  if (!kept) world_.fail("a link keeps too much: " + kept.error().message);
  if (link.carries != 0) send_over_line(link, link.outbox.ledger.sent() - 1, packet);
}

void LinkSet::on_tick() {
  for (auto& [seat, link] : links_) act(link, link.machine->on_tick(world_.now()));
}

}  // namespace weft::sim
