#include "net/examine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "base/printable.h"
#include "net/tls.h"
#include "security/keys.h"

namespace weft::net {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

constexpr size_t kSaysMax = 120;      // characters of what a stranger says
constexpr size_t kHeadMax = 4 << 10;  // bytes of it that are read

// What getaddrinfo says; `flags` as its own.
Result<Addresses> look_up(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int problem =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (problem == 0) return Addresses(found, &::freeaddrinfo);
  const bool is_unknown = problem == EAI_NONAME;
  return fail(is_unknown ? ErrorCode::NotFound : ErrorCode::Unavailable, ::gai_strerror(problem));
}

std::vector<Endpoint> endpoints_of(const addrinfo* all, uint16_t port) {
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
    char host[NI_MAXHOST] = {};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    Endpoint endpoint{host, port};
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end())
      endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

tl::unexpected<Error> cannot_connect(int number) {
  const ErrorCode code = number == EACCES || number == EPERM ? ErrorCode::PermissionDenied
                         : number == ETIMEDOUT               ? ErrorCode::Timeout
                                                             : ErrorCode::Unavailable;
  return fail(code, std::generic_category().message(number));
}

// False: not until then.
bool wait_until(int descriptor, short events, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waits{descriptor, events, 0};
    const int ready = ::poll(&waits, 1, static_cast<int>(left) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<Socket> connect_to(const Endpoint& address, Clock::time_point end) {
  WEFT_TRY(const Addresses found, look_up(address, AI_NUMERICHOST));
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return cannot_connect(errno);
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return cannot_connect(errno);
  if (!wait_until(socket.get(), POLLOUT, end)) return fail(ErrorCode::Timeout, "no answer");
  int number = 0;
  socklen_t size = sizeof number;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &number, &size) != 0) number = errno;
  if (number != 0) return cannot_connect(number);
  return socket;
}

std::string shown(std::string_view text) {
  return printable(text.substr(0, std::min(text.find_first_of("\r\n"), kSaysMax)));
}

// As TLS itself, which takes any certificate: nothing is sent behind it.
bool shake_hands(SSL* ssl, int descriptor, Clock::time_point end) {
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(ssl);
    if (result == 1) return true;
    const int what = SSL_get_error(ssl, result);
    const bool reads = what == SSL_ERROR_WANT_READ;
    if (!reads && what != SSL_ERROR_WANT_WRITE) return false;
    if (!wait_until(descriptor, reads ? POLLIN : POLLOUT, end)) return false;
  }
}

std::string name_of(const X509_NAME* name) {
  char text[256] = {};
  X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), NID_commonName, text, sizeof text - 1);
  return text[0] != '\0' ? shown(text) : "nobody by name";
}

// Nothing: it is no TLS.
Result<std::optional<Answerer>> ask_by_tls(const Endpoint& address, Clock::time_point end) {
  WEFT_TRY(const Socket socket, connect_to(address, end));
  const std::unique_ptr<SSL_CTX, TlsRelease> context(SSL_CTX_new(TLS_client_method()));
  const std::unique_ptr<SSL, TlsRelease> ssl(context ? SSL_new(context.get()) : nullptr);
  if (!ssl || SSL_set_fd(ssl.get(), socket.get()) != 1)
    return fail(ErrorCode::ResourceExhausted, "TLS cannot begin: " + security::openssl_error());
  SSL_set_verify(ssl.get(), SSL_VERIFY_NONE, nullptr);
  const bool is_done = shake_hands(ssl.get(), socket.get(), end);
  ERR_clear_error();
  const security::CertificatePtr certificate(SSL_get1_peer_certificate(ssl.get()));
  if (!certificate) return std::optional<Answerer>();
  Answerer answer{.kind = Answerer::Kind::OtherTls};
  const auto key = security::peer_id(X509_get0_pubkey(certificate.get()));
  if (key && is_done && SSL_version(ssl.get()) == TLS1_3_VERSION) {
    answer.kind = Answerer::Kind::Weft;
    answer.key = *key;
  } else {
    answer.says = "the certificate of " + name_of(X509_get_subject_name(certificate.get())) + ", issued by " +
                  name_of(X509_get_issuer_name(certificate.get()));
  }
  return std::optional(std::move(answer));
}

// The first bytes of what is there; of HTTP the head, if it comes in time.
std::string read_head(int descriptor, Clock::time_point end) {
  std::string head;
  while (head.size() < kHeadMax && head.find("\r\n\r\n") == std::string::npos) {
    if (!wait_until(descriptor, POLLIN, end)) break;
    char bytes[1024];
    const ssize_t size = ::recv(descriptor, bytes, sizeof bytes, 0);
    if (size <= 0) break;
    head.append(bytes, static_cast<size_t>(size));
  }
  return head;
}

bool is_same_name(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

// The value of a header, whatever case its name is in; empty: it has none.
std::string header_of(const std::string& head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
    const std::string_view line = std::string_view(head).substr(at + 2);
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (!is_same_name(line.substr(0, name.size()), name)) continue;
    const std::string_view value = line.substr(name.size() + 1);
    return shown(value.substr(std::min(value.find_first_not_of(' '), value.size())));
  }
  return {};
}

Result<Answerer> ask_in_the_clear(const Endpoint& address, Clock::time_point end) {
  WEFT_TRY(const Socket socket, connect_to(address, end));
  const std::string request =
      "GET / HTTP/1.1\r\nHost: " + to_string(address) + "\r\nConnection: close\r\n\r\n";
  (void)::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  const std::string head = read_head(socket.get(), end);
  if (head.empty()) return Answerer{.kind = Answerer::Kind::Silent};
  if (!head.starts_with("HTTP/")) return Answerer{.kind = Answerer::Kind::Other, .says = shown(head)};
  Answerer answer{.kind = Answerer::Kind::Http, .says = shown(head)};
  if (const std::string where = header_of(head, "location"); !where.empty())
    answer.says += ", which sends to " + where;
  return answer;
}

Clock::time_point after(Duration deadline) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline);
}

}  // namespace

Result<std::vector<Endpoint>> resolve(const Endpoint& endpoint, Duration deadline) {
  auto answer = std::make_shared<std::promise<Result<std::vector<Endpoint>>>>();
  auto future = answer->get_future();
  // The library's call cannot be ended; where it hangs it keeps its thread.
  std::thread([endpoint, answer] {
    const auto found = look_up(endpoint, 0);
    answer->set_value(found ? Result<std::vector<Endpoint>>(endpoints_of(found->get(), endpoint.port))
                            : fail(found.error()));
  }).detach();
  if (future.wait_for(deadline) != std::future_status::ready)
    return fail(ErrorCode::Timeout, "no name server answers");
  return future.get();
}

Result<Duration> connect_time(const Endpoint& address, Duration deadline) {
  const auto begin = Clock::now();
  WEFT_TRY(const Socket socket, connect_to(address, after(deadline)));
  return std::chrono::duration_cast<Duration>(Clock::now() - begin);
}

Result<Answerer> who_answers(const Endpoint& address, Duration deadline) {
  // What is silent when it is spoken to by TLS may still greet in the clear.
  WEFT_TRY(auto answer, ask_by_tls(address, after(deadline / 2)));
  if (answer) return *std::move(answer);
  return ask_in_the_clear(address, after(deadline / 2));
}

}  // namespace weft::net
