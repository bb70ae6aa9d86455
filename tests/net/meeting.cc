#include "tests/net/meeting.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weft::net::test {

namespace {
const security::Identity& made_once(std::unique_ptr<security::Identity>& slot) {
  if (!slot) slot = std::move(*security::Identity::generate());
  return *slot;
}
}  // namespace

const security::Identity& server_identity() {
  static std::unique_ptr<security::Identity> identity;
  return made_once(identity);
}
const security::Identity& client_identity() {
  static std::unique_ptr<security::Identity> identity;
  return made_once(identity);
}
const security::Identity& other_identity() {
  static std::unique_ptr<security::Identity> identity;
  return made_once(identity);
}

std::vector<std::byte> random_bytes(uint64_t seed, size_t size) {
  Rng rng(seed, 77);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t draw = rng.next_u64();
    std::memcpy(bytes.data() + i, &draw, std::min<size_t>(8, size - i));
  }
  return bytes;
}

OutFrame make_frame(uint8_t kind, std::vector<std::byte> head, std::vector<std::byte> body) {
  OutFrame frame{.kind = kind, .head = std::move(head), .body = {}};
  if (body.empty()) return frame;
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(body));
  frame.body = {owner, *owner};
  return frame;
}

std::vector<std::byte> to_vector(const InFrame& frame) {
  const auto bytes = frame.payload.span();
  return {bytes.begin(), bytes.end()};
}

void Side::start(const ConnectionLimits& limits) {
  connection->set_limits(limits);
  connection->start({.on_frame = [this](InFrame frame) { frames.push_back(std::move(frame)); },
                     .on_closed =
                         [this](const Error& error) {
                           closed = error;
                           ++closed_count;
                         },
                     .on_drained = [this] { ++drained_count; }});
}

Meeting::Meeting(ListenOptions options) {
  if (options.identity == nullptr) options.identity = &server_identity();
  auto opened = Listener::open(loop, {"127.0.0.1", 0}, std::move(options), [this](ConnectionPtr connection) {
    accepted.push_back(std::move(connection));
  });
  EXPECT_TRUE(opened) << opened.error().message;
  listener = std::move(*opened);
}

ConnectOptions Meeting::client_options() const {
  return {
      .identity = &client_identity(), .expected = server_identity().id(), .deadline = kPatience, .shape = {}};
}

std::unique_ptr<Outcome> Meeting::begin(const ConnectOptions& options) {
  auto outcome = std::make_unique<Outcome>();
  outcome->attempt =
      connect(loop, listener->endpoint(), options,
              [at = outcome.get()](Result<ConnectionPtr> result) { at->result = std::move(result); });
  return outcome;
}

void Meeting::join(Side& client, Side& server, const ConnectOptions& options) {
  const auto outcome = begin(options);
  const size_t before = accepted.size();
  ASSERT_TRUE(run_until(
      [&] { return outcome->is_done() && (!outcome->is_connected() || accepted.size() > before); }));
  ASSERT_TRUE(outcome->is_connected()) << outcome->message();
  client.connection = **outcome->result;
  server.connection = accepted.back();
  accepted.pop_back();
  client.start();
  server.start();
}

RawSocket::RawSocket(const Endpoint& endpoint) : descriptor_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr);
  EXPECT_EQ(::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

void RawSocket::send(std::span<const std::byte> bytes) {
  (void)!::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RawSocket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

bool RawSocket::is_closed() {
  std::array<std::byte, 4096> bytes;
  for (;;) {
    const ssize_t size = ::recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size > 0) received.insert(received.end(), bytes.begin(), bytes.begin() + size);
    if (size == 0 || (size < 0 && errno != EAGAIN)) return true;
    if (size < 0) return false;
  }
}

}  // namespace weft::net::test
