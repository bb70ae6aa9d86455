#include "peer/service/links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"
#include "peer/service/bulk.h"
#include "security/token.h"

namespace weft::peer {

namespace {

// Who sends to whom, and who is linked, a broker says apart.
Error no_link() { return {ErrorCode::InvalidArgument, "the broker assigned no link there"}; }
constexpr size_t kUnsentMax = 128 << 10;  // bytes in a socket's buffer, behind which what is urgent waits

uint64_t draw_session() {
  std::array<uint8_t, sizeof(uint64_t)> drawn;
  security::fill_random(drawn);
  uint64_t session = 0;
  std::memcpy(&session, drawn.data(), drawn.size());
  return session;
}

uint64_t edge_bytes(const proto::StageProgram& program, const proto::EdgeEnd& end) {
  return static_cast<uint64_t>(program.graph->spec(end.value).bytes().value);
}

// Of all edges with that seat, and of what replicas agree about with it: what is sent, and what comes.
std::pair<uint64_t, uint64_t> bytes_of_edges(const proto::AssignStage& assignment, const plan::Seat& seat) {
  uint64_t sends = 0, receives = 0;
  for (const proto::StageProgram& program : assignment.programs) {
    for (const proto::EdgeEnd& end : program.sends)
      if (other_end(end, assignment.seat) == seat) sends += edge_bytes(program, end);
    for (const proto::EdgeEnd& end : program.receives)
      if (other_end(end, assignment.seat) == seat) receives += edge_bytes(program, end);
  }
  // Differences one way and means the other, each of the tensor's size.
  for (const AgreedWeight& weight : agreed_weights(assignment)) {
    const proto::AgreedTensor& tensor = *weight.tensor;
    const bool is_others = seat.replica != assignment.seat.replica && seat.replica < tensor.stages.size() &&
                           tensor.stages[seat.replica] == seat.stage;
    if (!is_others || (!weight.is_ours && tensor.owner != seat.replica)) continue;
    sends += static_cast<uint64_t>(weight.spec.bytes().value);
    receives += static_cast<uint64_t>(weight.spec.bytes().value);
  }
  return {sends, receives};
}

void set_limits(net::Connection& connection, bool in_pieces) {
  net::ConnectionLimits limits;
  limits.frame_size_max = in_pieces ? proto::kPieceSize + proto::kPieceHeadSizeMax
                                    : proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
  // A tensor at a time. A neighbour that sends and does not read does not make acknowledgements pile up
  // without end.
  limits.send_queue_max = proto::kTensorSizeMax + (64 << 20);
  limits.unsent_max = kUnsentMax;
  connection.set_limits(limits);
}
}  // namespace

Links::Links(LinkOptions options, std::shared_ptr<const proto::AssignStage> assignment, Handlers handlers)
    : options_(std::move(options)),
      assignment_(std::move(assignment)),
      expected_(assignment_),
      handlers_(std::move(handlers)) {
  for (const proto::LinkRoute& route : assignment_->links) {
    Link& link = links_[route.seat];
    const auto [sends, receives] = bytes_of_edges(*assignment_, route.seat);
    link.queue = LinkQueue({.kept_bytes_max = options_.kept_bytes_max, .window_bytes = window_of(sends)});
    // Twice what is begun at a time by who keeps to it.
    link.assembly = TensorAssembly(2 * window_of(receives));
    link.machine = std::make_unique<LinkMachine>(
        LinkMachine::Options{.times = options_, .streams = options_.streams, .draw_session = draw_session},
        *assignment_, route, link.queue);
  }
}

void Links::start() {
  for (auto& [seat, link] : links_) act(link, link.machine->start(options_.loop->now()));
  if (!all_up() || all_up_said_) return;
  all_up_said_ = true;
  handlers_.on_all_up();
}

void Links::act(Link& link, LinkMachine::Effects effects) {
  for (link_effects::Effect& effect : effects) {
    if (link.is_down) return;
    std::visit(Overloaded{
                   [&](const link_effects::Dial& e) { dial(link, e.address, e.deadline); },
                   [&](const link_effects::StopDialling&) { link.attempt.reset(); },
                   [&](const link_effects::DialStream& e) { dial_stream(link, e); },
                   [&](const link_effects::Wake& e) {
                     link.wake = options_.loop->after(e.after, [this, seat = seat_of(link)] {
                       Link& later = links_.at(seat);
                       act(later, later.machine->on_wake(options_.loop->now()));
                     });
                   },
                   [&](const link_effects::Say& e) {
                     if (const Channel* channel = link.channels.find(e.connection))
                       channel->connection->send(message_frame(e.message));
                   },
                   [&](const link_effects::Begin& e) {
                     begin(link, e.connection);
                     if (!e.first || all_up_said_ || !all_up()) return;
                     all_up_said_ = true;
                     handlers_.on_all_up();
                   },
                   [&](const link_effects::BeginStream& e) { begin(link, e.connection); },
                   [&](const link_effects::EndSession&) { end_session(link); },
                   [&](const link_effects::Close& e) { close_channel(link, e.connection); },
                   [&](const link_effects::Fail& e) { down(seat_of(link), e.error); },
               },
               effect);
  }
}

net::ConnectOptions Links::connect_options(const Link& link, const std::string& region,
                                           Duration deadline) const {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = link.machine->route().peer;
  options.deadline = deadline;
  options.may_dial = options_.may_dial;
  if (options_.shape) options.shape = options_.shape(region);
  return options;
}

void Links::dial(Link& link, const std::string& address, Duration deadline) {
  const proto::LinkRoute& route = link.machine->route();
  const auto dialled = [this, seat = route.seat](Result<net::ConnectionPtr> result) {
    on_dialled(seat, std::move(result));
  };
  if (address.empty()) {  // the TLS client at the relay is the side that dials
    net::ConnectOptions connect = connect_options(link, "", deadline);
    connect.may_dial = nullptr;  // the owner named the broker
    link.attempt = net::connect_by_relay(*options_.loop, options_.relay, {route.relay_ticket}, route.dials,
                                         connect, dialled);
    return;
  }
  const auto endpoint = net::parse_endpoint(address);
  if (!endpoint) return dialled(fail(endpoint.error()));
  link.attempt =
      net::connect(*options_.loop, *endpoint, connect_options(link, route.region, deadline), dialled);
}

uint64_t Links::add_channel(Link& link, const net::ConnectionPtr& connection) {
  link.channels.add(next_number_, connection);
  return next_number_++;
}

void Links::on_dialled(plan::Seat seat, Result<net::ConnectionPtr> result) {
  Link& link = links_.at(seat);
  link.attempt.reset();
  const Instant now = options_.loop->now();
  if (!result) return act(link, link.machine->on_dialled(now, fail(result.error())));
  const net::ConnectionPtr connection = std::move(*result);
  const uint64_t number = add_channel(link, connection);
  set_limits(*connection, /*in_pieces=*/false);
  connection->start(handlers_of(seat, number));
  act(link, link.machine->on_dialled(now, number));
}

// An emulated link is one connection, whose rate is the link's.
void Links::dial_stream(Link& link, const link_effects::DialStream& effect) {
  const plan::Seat seat = seat_of(link);
  const net::ConnectOptions connect =
      connect_options(link, link.machine->route().region, options_.address_deadline);
  const auto endpoint = net::parse_endpoint(effect.address);
  if (!endpoint || connect.shape)
    return on_stream_dialled(seat, effect.stream,
                             fail(ErrorCode::Unsupported, "the link has one connection"));
  link.further[effect.stream] =
      net::connect(*options_.loop, *endpoint, connect,
                   [this, seat, stream = effect.stream](Result<net::ConnectionPtr> result) {
                     on_stream_dialled(seat, stream, std::move(result));
                   });
}

void Links::on_stream_dialled(plan::Seat seat, uint32_t stream, Result<net::ConnectionPtr> result) {
  Link& link = links_.at(seat);
  link.further.erase(stream);
  const Instant now = options_.loop->now();
  if (!result) return act(link, link.machine->on_stream_dialled(now, stream, fail(result.error())));
  const net::ConnectionPtr connection = std::move(*result);
  const uint64_t number = add_channel(link, connection);
  set_limits(*connection, /*in_pieces=*/true);
  connection->start(handlers_of(seat, number));
  act(link, link.machine->on_stream_dialled(now, stream, number));
}

net::Connection::Handlers Links::handlers_of(plan::Seat seat, uint64_t number) {
  const std::weak_ptr<char> alive = alive_;
  return {
      .on_frame =
          [this, seat, number, alive](const net::InFrame& frame) {
            if (!alive.expired()) on_frame(seat, number, frame);
          },
      .on_closed =
          [this, seat, number, alive](const Error& error) {
            if (!alive.expired()) on_lost(seat, number, error);
          },
      .on_drained =
          [this, seat, number, alive] {
            if (!alive.expired()) on_drained(seat, number);
          },
      .on_head = [this, seat, number, alive](uint8_t kind, size_t size,
                                             std::span<const std::byte> head) -> Result<net::PayloadPlace> {
        return alive.expired() ? net::PayloadPlace{} : on_head(seat, number, kind, size, head);
      }};
}

std::optional<net::Connection::Handlers> Links::offer(const net::ConnectionPtr& connection,
                                                      const proto::LinkHello& hello) {
  const auto at = links_.find(hello.seat);
  if (at == links_.end() || at->second.is_down || !at->second.machine->wants(connection->remote(), hello))
    return std::nullopt;
  Link& link = at->second;
  const uint64_t number = add_channel(link, connection);
  act(link, link.machine->on_accepted(options_.loop->now(), number, hello));
  if (!link.channels.contains(number)) return std::nullopt;
  return handlers_of(hello.seat, number);
}

void Links::on_invitation(const proto::Secret& ticket) {
  for (auto& [seat, link] : links_) act(link, link.machine->on_invited(options_.loop->now(), ticket));
}

void Links::begin(Link& link, uint64_t number) {
  link.channels.carry(number);
  net::Connection& connection = *link.channels.find(number)->connection;
  set_limits(connection, link.machine->in_pieces());
  connection.pause_reading(is_paused_);
  give(link);
}

Links::Channel* Links::channel_of(Link& link, uint64_t number) {
  return link.machine->carries(number) ? link.channels.find(number) : nullptr;
}

void Links::give(Link& link) {
  link.channels.give(link.queue, /*whole=*/!link.machine->in_pieces(), options_.loop->now());
}

void Links::on_drained(plan::Seat seat, uint64_t number) {
  Link& link = links_.at(seat);
  Channel* channel = channel_of(link, number);
  if (link.is_down || channel == nullptr) return;
  link.channels.on_drained(*channel, link.machine->streams(), options_.loop->now());
  give(link);
}

void Links::send(plan::Seat seat, const proto::TensorHeader& header, const dag::Tensor& payload) {
  const auto at = links_.find(seat);
  if (at == links_.end()) return handlers_.on_down(seat, no_link());
  Link& link = at->second;
  if (link.is_down) return;
  const Status kept = link.queue.add(urgency_of(header, *assignment_), tensor_frame(header, payload));
  if (!kept) return down(seat, kept.error());
  give(link);
}

void Links::close_channel(Link& link, uint64_t number) {
  if (const net::ConnectionPtr connection = link.channels.take(number)) connection->close();
}

// What has not come whole goes again over the next ones.
void Links::end_session(Link& link) {
  link.channels.end_session();
  link.further.clear();
  link.assembly.clear();
  link.meter.drop();
}

void Links::on_lost(plan::Seat seat, uint64_t number, const Error& error) {
  Link& link = links_.at(seat);
  if (!link.is_down && link.channels.contains(number))
    act(link, link.machine->on_lost(options_.loop->now(), number, error));
}

void Links::lose_connections(const Error& error) {
  for (auto& [seat, link] : links_)
    for (const uint64_t number : link.channels.heard(/*all=*/true)) on_lost(seat, number, error);
}

void Links::on_tick() {
  for (auto& [seat, link] : links_)
    if (!link.is_down) on_link_tick(link, options_.loop->now());
}

void Links::on_link_tick(Link& link, Instant now) {
  for (const uint64_t number : link.channels.heard(/*all=*/is_paused_)) link.machine->on_bytes(now, number);
  act(link, link.machine->on_tick(now));
}

void Links::down(plan::Seat seat, const Error& error) {
  if (!std::exchange(links_.at(seat).is_down, true)) handlers_.on_down(seat, error);
}

void Links::pause_reading(bool paused) {
  is_paused_ = paused;
  for (auto& [seat, link] : links_) {
    link.meter.drop();
    link.channels.pause_reading(paused);
  }
}

bool Links::all_up() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.machine->was_up(); });
}

size_t Links::unsent() const {
  size_t unsent = 0;
  for (const auto& [seat, link] : links_) {
    if (link.channels.is_carrying()) unsent += link.queue.unsent_bytes() + link.channels.unsent();
  }
  return unsent;
}

std::vector<proto::LinkUse> Links::take_use() {
  std::vector<proto::LinkUse> uses;
  for (auto& [seat, link] : links_) {
    proto::LinkUse use = link.meter.take();
    use.seat = seat;
    use.bytes_sent = link.channels.take_sent();
    if (link.machine->is_up())
      use.way = link.machine->is_relayed() ? proto::LinkWay::Relay : proto::LinkWay::Direct;
    uses.push_back(use);
  }
  return uses;
}

}  // namespace weft::peer
