// A client of HTTP in the test's own hands: a blocking socket, with TLS or without, and a server whose
// handler the test scripts.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "web/server.h"

namespace weft::web::test {

// Long enough that only a hang reaches it.
inline constexpr std::chrono::seconds kPatience(60);

struct Reply {
  int status = 0;                                // 0: the connection ended before a whole reply came
  std::map<std::string, std::string> headers{};  // names in lower case
  std::string body{};
  bool is_whole = false;
};

struct TlsOptions {
  int version = TLS1_3_VERSION;
};

class Client {
 public:
  explicit Client(const net::Endpoint& endpoint) { connect(endpoint); }
  Client(const net::Endpoint& endpoint, const TlsOptions& tls);
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False: the other side has closed.
  bool send(std::string_view bytes);
  // The next reply; of a stream its head alone.
  Reply read_reply(bool is_head_request = false);
  // Of a stream, unframed: up to and with `mark`; less where the connection ended before.
  std::string read_until(std::string_view mark);
  // Of a stream: whether its end came, rather than the end of the connection.
  bool read_stream_end();
  bool is_closed();  // waits for the end
  // The other side has closed already, or does so within the time.
  bool closes_within(std::chrono::milliseconds time);
  bool is_handshake_done() const { return is_handshake_done_; }
  void close();
  void reset();  // as a process that dies does
  void set_receive_buffer(int bytes);

 private:
  void connect(const net::Endpoint& endpoint);
  bool fill();  // false: the end
  std::string take(size_t size);
  std::string take_line();
  bool read_chunk();

  int socket_ = -1;
  SSL* ssl_ = nullptr;
  bool is_handshake_done_ = false;
  std::string input_, stream_;
  bool is_stream_over_ = false;
};

Reply ask(const net::Endpoint& endpoint, std::string_view request);
std::string get(std::string_view path);
std::string post(std::string_view path, std::string_view body);

// What the test answers by hand, with any thread.
struct Arrival {
  Request request;
  Responder responder;
};

// "/hi" says hi, "/size" the size of the body, "/drop" nothing; "/refused" is refused by its head. Whatever
// begins with "/later" waits for the test.
class Script final : public Handler {
 public:
  std::optional<Response> on_head(const Request& request) override;
  void on_request(Request request, Responder responder) override;
  Arrival next();  // waits for it

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Arrival> arrivals_;
};

struct Running {
  explicit Running(const ServerLimits& limits = {}, bool has_tls = false);
  std::shared_ptr<Script> script = std::make_shared<Script>();
  std::unique_ptr<Server> server;
  net::Endpoint at() const { return server->endpoint(); }
};

// Something that one thread says and another waits for.
class Flag {
 public:
  void raise();
  bool wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_raised_ = false;
};

// PEM files with a certificate of "localhost", made once.
const std::string& certificate_file();
const std::string& key_file();

}  // namespace weft::web::test
