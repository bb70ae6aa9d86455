#include "peer/service/link_arrivals.h"

#include <chrono>

#include "proto/codec/codec.h"

namespace weft::peer {

namespace {
constexpr Duration kDeadline = std::chrono::seconds(30);
constexpr size_t kMost = 256;
}  // namespace

void LinkArrivals::add(const net::ConnectionPtr& connection) {
  if (arrivals_.size() >= kMost) return connection->close();
  const auto arrival = std::make_shared<Arrival>();
  arrival->connection = connection;
  arrival->since = loop_.now();
  arrivals_.push_back(arrival);
  const std::weak_ptr<Arrival> weak = arrival;
  arrival->handlers.on_frame = [this, weak](const net::InFrame& frame) {
    if (const auto here = weak.lock()) on_frame(here, frame);
  };
  arrival->handlers.on_closed = [this, weak](const Error&) {
    if (const auto here = weak.lock()) drop(here);
  };
  // Held by the connection: once somebody takes it over, its functions change.
  connection->start({.on_frame =
                         [arrival](net::InFrame frame) {
                           const auto on_frame = arrival->handlers.on_frame;
                           on_frame(std::move(frame));
                         },
                     .on_closed =
                         [arrival](const Error& error) {
                           const auto on_closed = arrival->handlers.on_closed;
                           on_closed(error);
                         },
                     .on_drained =
                         [arrival] {
                           const auto on_drained = arrival->handlers.on_drained;
                           if (on_drained) on_drained();
                         },
                     .on_head = [arrival](uint8_t kind, size_t size,
                                          std::span<const std::byte> head) -> Result<net::PayloadPlace> {
                       const auto on_head = arrival->handlers.on_head;
                       return on_head ? on_head(kind, size, head) : net::PayloadPlace{};
                     }});
}

void LinkArrivals::on_frame(const ArrivalPtr& arrival, const net::InFrame& frame) {
  const auto message = frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)
                           ? proto::decode(frame.payload.span())
                           : fail(ErrorCode::InvalidArgument, "not a message");
  const auto* hello = message ? std::get_if<proto::LinkHello>(&*message) : nullptr;
  const auto* probe = message ? std::get_if<proto::ProbeHello>(&*message) : nullptr;
  const auto* blob = message ? std::get_if<proto::GetBlob>(&*message) : nullptr;
  const bool is_first = !arrival->hello && !arrival->probe;
  if (blob != nullptr && is_first) {
    auto taken = takers_.blobs(arrival->connection, *blob);
    return taken ? hand_over(arrival, std::move(*taken)) : drop(arrival);
  }
  if ((hello == nullptr && probe == nullptr) || !is_first) return drop(arrival);
  if (hello != nullptr) arrival->hello = *hello;
  if (probe != nullptr) arrival->probe = *probe;
  match();
}

void LinkArrivals::match() {
  for (const auto& arrival : std::vector(arrivals_)) {
    Taken taken;
    if (arrival->hello) taken = takers_.link(arrival->connection, *arrival->hello);
    if (arrival->probe) taken = takers_.probe(arrival->connection, *arrival->probe);
    if (taken) hand_over(arrival, std::move(*taken));
  }
}

void LinkArrivals::hand_over(const ArrivalPtr& arrival, net::Connection::Handlers to) {
  arrival->handlers = std::move(to);
  arrival->connection.reset();  // whoever has taken it over holds it now
  std::erase(arrivals_, arrival);
}

void LinkArrivals::on_tick() {
  for (const auto& arrival : std::vector(arrivals_))
    if (loop_.now() - arrival->since > kDeadline) drop(arrival);
}

void LinkArrivals::drop(const ArrivalPtr& arrival) {
  if (arrival->connection) arrival->connection->close();
  arrival->connection.reset();  // it holds the arrival in its handlers
  std::erase(arrivals_, arrival);
}

}  // namespace weft::peer
