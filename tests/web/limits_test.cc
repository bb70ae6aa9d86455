// What a client that does wrong gets, and that others do not notice.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/web/client.h"
#include "web/exchange.h"

namespace weft::web::test {
namespace {

using std::chrono::milliseconds;

void expect_well(const Running& running) { EXPECT_EQ(ask(running.at(), get("/hi")).body, "hi"); }

TEST(Limits, ABodyOverAMebibyte) {
  const Running running;
  Client announced(running.at()), chunked(running.at()), just(running.at());
  // The whole of it is sent, as clients do that only then read: the answer must reach them.
  (void)announced.send(post("/size", std::string((1 << 20) + 1, 'x')));
  const Reply reply = announced.read_reply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("1048576"), std::string::npos);
  EXPECT_TRUE(announced.is_closed());
  ASSERT_TRUE(chunked.send("POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  for (int i = 0; i < 17; ++i) (void)chunked.send(chunk);
  EXPECT_EQ(chunked.read_reply().status, 413);
  ASSERT_TRUE(just.send(post("/size", std::string(1 << 20, 'x'))));
  EXPECT_EQ(just.read_reply().body, "1048576");
}

TEST(Limits, HeadersWithoutEnd) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send("GET /hi HTTP/1.1\r\nHost: a\r\n"));
  for (int i = 0; i < 1000; ++i)
    if (!client.send("X-Filler: " + std::string(1000, 'x') + "\r\n")) break;
  const int status = client.read_reply().status;
  EXPECT_TRUE(status == 431 || status == 0) << status;  // 0: it went on sending into a closed connection
  EXPECT_EQ(running.server->stats().refused_requests, 1u);
  expect_well(running);
}

// Sends a byte whenever the last has had `pause` for an answer, until the connection is closed.
void drip(Client& client, std::string_view text, milliseconds pause) {
  for (const char c : text) {
    if (!client.send({&c, 1}) || client.closes_within(pause)) return;
  }
}

TEST(Limits, ASlowHeadIsClosed) {
  const Running running({.head_deadline = milliseconds(100)});
  Client dripping(running.at()), silent(running.at()), half(running.at());
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(half.send("GET /hi HTTP/1.1\r\nHost"));
  drip(dripping, get("/" + std::string(4000, 'a')), milliseconds(5));
  EXPECT_TRUE(dripping.is_closed());
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(half.is_closed());
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(100));
  EXPECT_EQ(running.server->stats().timed_out, 3u);
}

TEST(Limits, ASlowBodyIsClosed) {
  const Running running({.body_deadline = milliseconds(100)});
  Client client(running.at());
  ASSERT_TRUE(client.send("POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"));
  drip(client, std::string(100000, 'x'), milliseconds(5));
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(running.server->stats().timed_out, 1u);
  EXPECT_EQ(running.server->stats().requests, 0u);
}

TEST(Limits, ASlowHandshakeIsClosed) {
  const Running running({.head_deadline = milliseconds(100)}, /*has_tls=*/true);
  Client silent(running.at()), half(running.at()), done(running.at(), TlsOptions{});
  ASSERT_TRUE(half.send(std::string("\x16\x03\x01\x01\x00\x01", 6)));
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(half.is_closed());
  EXPECT_TRUE(done.is_closed());  // it asks for nothing
  EXPECT_EQ(running.server->stats().timed_out, 3u);
}

TEST(Limits, AnIdleConnectionIsClosed) {
  const Running running({.idle_deadline = milliseconds(50)});
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/hi")));
  EXPECT_EQ(client.read_reply().body, "hi");
  EXPECT_TRUE(client.is_closed());
}

TEST(Limits, ARequestThatIsAnsweredHasNoDeadline) {
  const Running running({.head_deadline = milliseconds(200),
                         .body_deadline = milliseconds(200),
                         .idle_deadline = milliseconds(200)});
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  EXPECT_FALSE(client.closes_within(milliseconds(300)));
  arrival.responder.send({.body = "after long thought"});
  EXPECT_EQ(client.read_reply().body, "after long thought");
}

TEST(Limits, IdleConnectionsMakeRoomAndBusyOnesDoNot) {
  const Running running({.connections_max_per_address = 3, .silent_grace = milliseconds(0)});
  Client silent(running.at()), busy(running.at()), other(running.at());
  for (Client* client : {&busy, &other}) ASSERT_TRUE(client->send(get("/later")));
  const Arrival first = running.script->next(), second = running.script->next();
  Client third(running.at());
  ASSERT_TRUE(third.send(get("/later")));
  const Arrival last = running.script->next();
  EXPECT_TRUE(silent.is_closed());
  EXPECT_EQ(running.server->stats().displaced, 1u);
  Client beyond(running.at());
  EXPECT_TRUE(beyond.is_closed());
  EXPECT_EQ(running.server->stats().refused_by_limit, 1u);
  for (const Arrival* arrival : {&first, &second, &last}) arrival->responder.send({.body = "kept"});
  for (Client* client : {&busy, &other, &third}) EXPECT_EQ(client->read_reply().body, "kept");
}

TEST(Limits, AFloodOfHalfOpenConnectionsDoesNotShutOthersOut) {
  const Running running({.connections_max = 50, .silent_grace = milliseconds(0)});
  std::vector<std::unique_ptr<Client>> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(std::make_unique<Client>(running.at()));
    if (i % 50 == 49) expect_well(running);
  }
  EXPECT_LE(running.server->stats().open_connections, 50u);
  EXPECT_GE(running.server->stats().displaced, 250u);
}

TEST(Limits, BodiesOfAllTogether) {
  const Running running({.bodies_bytes_max = 1000});
  const auto begin = [](size_t size) {
    return "POST /size HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
           std::to_string(size) + "\r\n\r\n";
  };
  Client first(running.at()), second(running.at());
  ASSERT_TRUE(first.send(begin(600)));
  EXPECT_EQ(first.read_reply().status, 100);
  ASSERT_TRUE(second.send(begin(600)));
  int status = second.read_reply().status;
  if (status == 100) status = second.read_reply().status;
  EXPECT_EQ(status, 503);
  ASSERT_TRUE(first.send(std::string(600, 'x')));
  EXPECT_EQ(first.read_reply().body, "600");
  EXPECT_EQ(ask(running.at(), post("/size", std::string(600, 'x'))).body, "600");  // it was given back
}

TEST(Limits, RequestsThatWaitBehindAnotherAreBounded) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  Flag is_gone;
  arrival.responder.on_gone([&] { is_gone.raise(); });
  for (int i = 0; i < 10000; ++i)
    if (!client.send(get("/hi"))) break;
  EXPECT_TRUE(is_gone.wait());
  expect_well(running);
}

TEST(Limits, AnAbortIsSeenWhileNothingIsWritten) {
  const Running running;
  for (const bool is_reset : {false, true}) {
    Client client(running.at());
    ASSERT_TRUE(client.send(get("/later")));
    const Arrival arrival = running.script->next();
    Flag is_gone;
    arrival.responder.on_gone([&] { is_gone.raise(); });
    EXPECT_FALSE(arrival.responder.is_gone());
    is_reset ? client.reset() : client.close();
    EXPECT_TRUE(is_gone.wait());
    EXPECT_TRUE(arrival.responder.is_gone());
    Flag is_told_late;
    arrival.responder.on_gone([&] { is_told_late.raise(); });
    EXPECT_TRUE(is_told_late.wait());
  }
}

TEST(Limits, AClientSlowerThanItsTokensIsClosedAndOthersGoOn) {
  const Running running({.stream_unsent_max = 100'000});
  Client slow(running.at()), other(running.at());
  slow.set_receive_buffer(4096);
  ASSERT_TRUE(slow.send(get("/later")));
  const Arrival to_slow = running.script->next();
  ASSERT_TRUE(other.send(get("/later")));
  const Arrival to_other = running.script->next();
  Flag is_gone;
  to_slow.responder.on_gone([&] { is_gone.raise(); });
  to_slow.responder.start_stream();
  to_other.responder.start_stream();
  EXPECT_EQ(other.read_reply().status, 200);
  const std::string event = render_event("", std::string(1000, 't'));
  size_t written = 0;
  // As much as it likes to the one that reads, until the one that does not is let go.
  while (to_slow.responder.write(event) && written < (size_t{1} << 30)) {
    written += event.size();
    ASSERT_TRUE(to_other.responder.write(event));
    ASSERT_EQ(other.read_until("\n\n"), event);
  }
  EXPECT_TRUE(is_gone.wait());
  EXPECT_LT(written, size_t{8} << 20) << "its own bound, and what the system's buffers hold";
  EXPECT_EQ(running.server->stats().too_slow, 1u);
  to_other.responder.finish();
  EXPECT_TRUE(other.read_stream_end());
}

// Its writer gives up at once, and the loop may be on its way through what it took before.
TEST(Limits, OneThatIsTooSlowIsNotTakenForOneThatWasCut) {
  int wakes = 0;
  Exchange exchange({.unsent_max = 1000, .unsent_fair = 1000, .unsent_all_max = 1000},
                    std::make_shared<UnsentTotal>(), [&] { ++wakes; });
  bool is_told = false;
  exchange.on_gone([&] { is_told = true; });
  exchange.start_stream();
  (void)exchange.take();
  EXPECT_FALSE(exchange.write(std::string(2000, 't')));
  exchange.abandon();
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(exchange.is_gone());
  const Exchange::Output output = exchange.take();
  EXPECT_FALSE(output.is_cut || output.is_finished);
  exchange.gone();
  EXPECT_FALSE(is_told) << "nobody is there to hear it";
}

TEST(Limits, BeyondTheBoundOfAllAStreamKeepsItsFairShare) {
  const Running running(
      {.stream_unsent_max = 1 << 20, .unsent_bytes_max = 300'000, .stream_unsent_fair = 2'000});
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Arrival> arrivals;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<Client>(running.at()));
    clients.back()->set_receive_buffer(4096);
    ASSERT_TRUE(clients.back()->send(get("/later")));
    arrivals.push_back(running.script->next());
    arrivals.back().responder.start_stream();
  }
  const std::string event = render_event("", std::string(1000, 't'));
  size_t written = 0;
  while (arrivals[0].responder.write(event) && written < (size_t{64} << 20)) written += event.size();
  EXPECT_LT(written, size_t{8} << 20);
  EXPECT_TRUE(arrivals[1].responder.write(event)) << "it has hardly anything of its own that waits";
}

TEST(Limits, AClientThatTakesNothingIsClosed) {
  const Running running({.stall_deadline = milliseconds(100), .stream_unsent_max = size_t{1} << 30});
  Client client(running.at());
  client.set_receive_buffer(4096);
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  Flag is_gone;
  arrival.responder.start_stream();
  arrival.responder.on_gone([&] { is_gone.raise(); });
  // More than the system's buffers hold, and less than its own bound: only time tells.
  while (running.server->stats().timed_out == 0 && arrival.responder.write(std::string(10'000, 't')))
    if (client.closes_within(milliseconds(1))) break;
  EXPECT_TRUE(is_gone.wait());
  EXPECT_EQ(running.server->stats().timed_out, 1u);
}

TEST(Limits, RequestsFasterThanTheirAnswersAreRead) {
  const Running running({.stall_deadline = milliseconds(200)});
  Client client(running.at());
  client.set_receive_buffer(4096);
  std::string many;
  for (int i = 0; i < 1000; ++i) many += get("/hi");
  for (int i = 0; i < 1000; ++i)
    if (!client.send(many)) break;  // nobody reads the answers: the server stops, and then closes
  expect_well(running);
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  return 0;
}

// Clients and server are in this process, so the server alone costs less than what is seen here.
void idle_streams(bool has_tls, long limit_mib) {
  constexpr int kStreams = 1000;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2 * kStreams + 100) GTEST_SKIP() << "this system grants too few open files";
  const Running running({}, has_tls);
  const std::string event = render_event("r-0", std::string(200, 't'));
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Arrival> arrivals;
  const long before = resident_kib();
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(has_tls ? std::make_unique<Client>(running.at(), TlsOptions{})
                              : std::make_unique<Client>(running.at()));
    ASSERT_TRUE(clients.back()->send(post("/later", std::string(500, 'p'))));
    arrivals.push_back(running.script->next());
    arrivals.back().responder.start_stream();
    ASSERT_TRUE(arrivals.back().responder.write(event));
    ASSERT_EQ(clients.back()->read_reply().status, 200);
    ASSERT_EQ(clients.back()->read_until("\n\n"), event);
  }
  const long grown = resident_kib() - before;
  std::printf("%d idle streams %s: %ld KiB more, of server and clients\n", kStreams,
              has_tls ? "with TLS" : "without TLS", grown);
  if (!weft::test::kIsSanitized) {
    EXPECT_LT(grown, limit_mib << 10);
  }
  EXPECT_EQ(running.server->stats().open_requests, static_cast<uint64_t>(kStreams));
}

TEST(Memory, AThousandIdleStreams) { idle_streams(/*has_tls=*/false, 64); }
TEST(Memory, AThousandIdleStreamsWithTls) { idle_streams(/*has_tls=*/true, 128); }

}  // namespace
}  // namespace weft::web::test
