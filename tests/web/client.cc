#include "tests/web/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/web/certificate.h"

namespace weft::web::test {

namespace {

SSL_CTX* client_context() {
  static SSL_CTX* const kContext = [] {
    SSL_CTX* made = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(made, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    EXPECT_EQ(SSL_CTX_load_verify_locations(made, certificate_file().c_str(), nullptr), 1);
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    return made;
  }();
  return kContext;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

Client::Client(const net::Endpoint& endpoint, const TlsOptions& tls) {
  connect(endpoint);
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL, and the server may have closed
  ssl_ = SSL_new(client_context());
  SSL_set_min_proto_version(ssl_, tls.version);
  SSL_set_max_proto_version(ssl_, tls.version);
  SSL_set1_host(ssl_, "localhost");
  SSL_set_fd(ssl_, socket_);
  is_handshake_done_ = SSL_connect(ssl_) == 1;
  ERR_clear_error();
}

void Client::connect(const net::Endpoint& endpoint) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  ::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr);
  EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int at_once = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

void Client::set_receive_buffer(int bytes) {
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

void Client::close() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  ssl_ = nullptr;
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto size = ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                                      : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

bool Client::fill() {
  char piece[16 << 10];
  const auto size =
      ssl_ != nullptr ? SSL_read(ssl_, piece, sizeof(piece)) : ::recv(socket_, piece, sizeof(piece), 0);
  if (size < 0 && ssl_ == nullptr && (errno == EAGAIN || errno == EWOULDBLOCK))
    ADD_FAILURE() << "nothing came, and the connection did not end";
  if (size <= 0) return false;
  input_.append(piece, static_cast<size_t>(size));
  return true;
}

std::string Client::take(size_t size) {
  while (input_.size() < size)
    if (!fill()) break;
  std::string taken = input_.substr(0, size);
  input_.erase(0, size);
  return taken;
}

std::string Client::take_line() {
  size_t end;
  while ((end = input_.find("\r\n")) == std::string::npos)
    if (!fill()) return {};
  std::string line = input_.substr(0, end);
  input_.erase(0, end + 2);
  return line;
}

Reply Client::read_reply(bool is_head_request) {
  Reply reply;
  stream_.clear();
  is_stream_over_ = false;
  const std::string first = take_line();
  if (!first.starts_with("HTTP/1.1 ")) return reply;
  const int status = std::stoi(first.substr(9));
  for (std::string line = take_line(); !line.empty(); line = take_line()) {
    const size_t colon = line.find(": ");
    reply.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  reply.status = status;
  if (status == 100 || is_head_request || !reply.headers.contains("content-length")) {
    reply.is_whole = true;
    return reply;
  }
  const size_t size = std::stoul(reply.headers["content-length"]);
  reply.body = take(size);
  reply.is_whole = reply.body.size() == size;
  return reply;
}

bool Client::read_chunk() {
  const std::string line = take_line();
  if (line.empty()) return false;
  const size_t size = std::stoul(line, nullptr, 16);
  const std::string chunk = take(size + 2);
  if (chunk.size() != size + 2) return false;
  stream_ += chunk.substr(0, size);
  is_stream_over_ = size == 0;
  return size != 0;
}

std::string Client::read_until(std::string_view mark) {
  size_t at;
  while ((at = stream_.find(mark)) == std::string::npos)
    if (!read_chunk()) return std::exchange(stream_, {});
  std::string taken = stream_.substr(0, at + mark.size());
  stream_.erase(0, at + mark.size());
  return taken;
}

bool Client::read_stream_end() {
  while (!is_stream_over_ && read_chunk()) {
  }
  return is_stream_over_;
}

bool Client::is_closed() {
  while (fill()) input_.clear();
  return !::testing::Test::HasFailure();
}

bool Client::closes_within(std::chrono::milliseconds time) {
  pollfd watched{.fd = socket_, .events = POLLIN, .revents = 0};
  if (::poll(&watched, 1, static_cast<int>(time.count())) != 1) return false;
  char byte;
  return ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

std::string get(std::string_view path) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n\r\n";
}
std::string post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}
Reply ask(const net::Endpoint& endpoint, std::string_view request) {
  Client client(endpoint);
  EXPECT_TRUE(client.send(request));
  return client.read_reply(request.starts_with("HEAD"));
}

std::optional<Response> Script::on_head(const Request& request) {
  if (request.path != "/refused") return {};
  return Response{.status = 401, .content_type = "text/plain", .body = "no"};
}

void Script::on_request(Request request, Responder responder) {
  if (request.path == "/hi") return responder.send({.content_type = "text/plain", .body = "hi"});
  if (request.path == "/size")
    return responder.send({.content_type = "text/plain", .body = std::to_string(request.body.size())});
  if (request.path == "/drop") return;
  if (!request.path.starts_with("/later")) return responder.send({.status = 404});
  const std::lock_guard lock(mutex_);
  arrivals_.push_back({std::move(request), std::move(responder)});
  changed_.notify_all();
}

Arrival Script::next() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return !arrivals_.empty(); })) {
    ADD_FAILURE() << "no request came";
    std::abort();
  }
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  return arrival;
}

Running::Running(const ServerLimits& limits, bool has_tls) {
  auto started = Server::start({.certificate_file = has_tls ? certificate_file() : "",
                                .key_file = has_tls ? key_file() : "",
                                .limits = limits},
                               script);
  EXPECT_TRUE(started) << started.error().message;
  server = std::move(*started);
}

void Flag::raise() {
  const std::lock_guard lock(mutex_);
  is_raised_ = true;
  changed_.notify_all();
}
bool Flag::wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return is_raised_; });
}

const std::string& certificate_file() { return files_of_certificate().certificate; }
const std::string& key_file() { return files_of_certificate().key; }

}  // namespace weft::web::test
