#include "web/server.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/web/client.h"

namespace weft::web::test {
namespace {

using std::chrono::milliseconds;

TEST(Server, AWholeResponse) {
  const Running running;
  const Reply reply = ask(running.at(), get("/hi"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "hi");
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain");
  EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
  EXPECT_TRUE(reply.headers.at("date").ends_with(" GMT"));
}

TEST(Server, OneConnectionServesManyRequests) {
  const Running running;
  Client client(running.at());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(client.send(post("/size", std::string(static_cast<size_t>(i) * 1000, 'x'))));
    EXPECT_EQ(client.read_reply().body, std::to_string(i * 1000));
  }
  EXPECT_EQ(running.server->stats().connections, 1u);
  EXPECT_EQ(running.server->stats().requests, 20u);
}

TEST(Server, PipelinedRequestsAreAnsweredInOrder) {
  const Running running;
  Client client(running.at());
  std::string all;
  for (int i = 0; i < 100; ++i) all += post("/size", std::string(static_cast<size_t>(i), 'x'));
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client.read_reply().body, std::to_string(i));
}

TEST(Server, WhoAsksForTheEndGetsIt) {
  const Running running;
  for (const char* request :
       {"GET /hi HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET /hi HTTP/1.0\r\n\r\n"}) {
    Client client(running.at());
    ASSERT_TRUE(client.send(request));
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.body, "hi");
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_TRUE(client.is_closed());
  }
}

TEST(Server, HeadHasNoBody) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send("HEAD /hi HTTP/1.1\r\nHost: a\r\n\r\n" + get("/hi")));
  EXPECT_EQ(client.read_reply(/*is_head_request=*/true).headers.at("content-length"), "2");
  EXPECT_EQ(client.read_reply().body, "hi");
}

TEST(Server, AClientThatAsksWhetherToGoOnIsTold) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(
      client.send("POST /size HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"));
  EXPECT_EQ(client.read_reply().status, 100);
  ASSERT_TRUE(client.send("abc"));
  EXPECT_EQ(client.read_reply().body, "3");
}

TEST(Server, AHeadCanBeRefusedBeforeItsBody) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send("POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"));
  EXPECT_EQ(client.read_reply().status, 401);
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(running.server->stats().requests, 0u);
}

TEST(Server, WhatNobodyAnswersIsAnErrorOfOurs) {
  const Running running;
  EXPECT_EQ(ask(running.at(), get("/drop")).status, 500);
}

TEST(Server, AStreamAndThenAnotherRequest) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later?a=b")));
  Arrival arrival = running.script->next();
  EXPECT_EQ(arrival.request.query.at("a"), "b");
  EXPECT_TRUE(arrival.request.remote.starts_with("127.0.0.1:"));
  arrival.responder.start_stream();
  EXPECT_EQ(client.read_reply().headers.at("content-type"), "text/event-stream; charset=utf-8");
  for (int i = 0; i < 3; ++i) {
    const std::string event = render_event("r-" + std::to_string(i), "token");
    EXPECT_TRUE(arrival.responder.write(event));
    EXPECT_EQ(client.read_until("\n\n"), event);  // each as it comes
  }
  arrival.responder.finish();
  EXPECT_FALSE(arrival.responder.write("data: late\n\n"));
  EXPECT_TRUE(client.read_stream_end());
  ASSERT_TRUE(client.send(get("/hi")));
  EXPECT_EQ(client.read_reply().body, "hi");
}

TEST(Server, AStreamOfHttp10EndsWithItsConnection) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send("GET /later HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const Arrival arrival = running.script->next();
  arrival.responder.start_stream();
  arrival.responder.write("data: a\n\n");
  arrival.responder.finish();
  const Reply reply = client.read_reply();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_TRUE(client.is_closed());
}

TEST(Server, ManyThreadsWriteManyStreams) {
  const Running running;
  constexpr int kStreams = 8, kEvents = 200;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::jthread> writers;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(running.at()));
    ASSERT_TRUE(clients.back()->send(get("/later")));
    writers.emplace_back([arrival = running.script->next()] {
      arrival.responder.start_stream();
      for (int n = 0; n < kEvents; ++n) arrival.responder.write(render_event("", std::to_string(n)));
      arrival.responder.finish();
    });
  }
  for (const auto& client : clients) {
    EXPECT_EQ(client->read_reply().status, 200);
    for (int n = 0; n < kEvents; ++n)
      ASSERT_EQ(client->read_until("\n\n"), render_event("", std::to_string(n)));
    EXPECT_TRUE(client->read_stream_end());
  }
}

// What is written while the connection waits for its client must not wait for ever.
TEST(Server, AClientThatPausesGetsAll) {
  for (const bool has_tls : {false, true}) {
    const Running running({.stream_unsent_max = size_t{64} << 20}, has_tls);
    const auto client = has_tls ? std::make_unique<Client>(running.at(), TlsOptions{})
                                : std::make_unique<Client>(running.at());
    ASSERT_TRUE(client->send(get("/later")));
    const Arrival arrival = running.script->next();
    arrival.responder.start_stream();
    constexpr int kEvents = 20'000;
    const std::string filler(1000, 't');  // more than the system's buffers hold
    for (int i = 0; i < kEvents; ++i)
      ASSERT_TRUE(arrival.responder.write(render_event(std::to_string(i), filler)));
    EXPECT_EQ(client->read_reply().status, 200);
    for (int i = 0; i < kEvents; ++i)
      ASSERT_EQ(client->read_until("\n\n"), render_event(std::to_string(i), filler));
    arrival.responder.finish();
    EXPECT_TRUE(client->read_stream_end());
  }
}

TEST(Server, AStreamThatIsAbandonedIsCutOff) {
  const Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later")));
  {
    const Arrival arrival = running.script->next();
    arrival.responder.start_stream();
    arrival.responder.write("data: a\n\n");
  }
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_until("\n\n"), "data: a\n\n");
  EXPECT_FALSE(client.read_stream_end()) << "the end of a stream would say that it is whole";
  EXPECT_TRUE(client.is_closed());
}

TEST(Server, AQuietStreamIsKeptAlive) {
  const Running running({.ping_every = milliseconds(5)});
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  arrival.responder.start_stream();
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_until("\n\n"), ":\n\n");
  EXPECT_EQ(client.read_until("\n\n"), ":\n\n");
}

TEST(Server, StoppingLetsAnswersEnd) {
  Running running;
  Client waiting(running.at()), streaming(running.at()), idle(running.at());
  ASSERT_TRUE(waiting.send(get("/later")));
  const Arrival first = running.script->next();
  ASSERT_TRUE(streaming.send(get("/later")));
  const Arrival second = running.script->next();
  second.responder.start_stream();
  EXPECT_EQ(streaming.read_reply().status, 200);
  std::jthread stopper([&] { running.server->stop(kPatience); });
  EXPECT_TRUE(idle.is_closed());
  second.responder.write("data: a\n\n");
  second.responder.finish();
  EXPECT_EQ(streaming.read_until("\n\n"), "data: a\n\n");
  EXPECT_TRUE(streaming.read_stream_end());
  first.responder.send({.body = "done"});
  EXPECT_EQ(waiting.read_reply().body, "done");
  streaming.close();
  waiting.close();
}

TEST(Server, StoppingDoesNotWaitBeyondItsDeadline) {
  Running running;
  Client client(running.at());
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  Flag is_gone;
  arrival.responder.on_gone([&] { is_gone.raise(); });
  arrival.responder.start_stream();
  running.server->stop(milliseconds(20));
  EXPECT_TRUE(is_gone.wait());
  EXPECT_TRUE(client.is_closed());
  EXPECT_FALSE(arrival.responder.write("data: late\n\n"));
  running.server.reset();
  arrival.responder.finish();  // of a server that is no more
}

TEST(Server, SaysWhyItCannotListen) {
  const Running running;
  const auto script = std::make_shared<Script>();
  const auto taken = Server::start({.endpoint = running.at()}, script);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::Unavailable);
  const auto absent =
      Server::start({.certificate_file = "/nowhere/a.pem", .key_file = "/nowhere/b.pem"}, script);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::NotFound);
  const auto swapped =
      Server::start({.certificate_file = key_file(), .key_file = certificate_file()}, script);
  ASSERT_FALSE(swapped);
  EXPECT_EQ(swapped.error().code, ErrorCode::InvalidArgument);
  const auto half = Server::start({.certificate_file = certificate_file()}, script);
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code, ErrorCode::InvalidArgument);
}

TEST(Server, ItsFiguresAreMetrics) {
  const Running running;
  EXPECT_EQ(ask(running.at(), get("/hi")).status, 200);
  const Metrics metrics = to_metrics(running.server->stats());
  EXPECT_EQ(metrics.value("weft_http_requests_total"), 1);
  EXPECT_EQ(metrics.value("weft_http_connections_total"), 1);
}

TEST(TlsServer, ServesOverTls13Alone) {
  const Running running({}, /*has_tls=*/true);
  Client client(running.at(), TlsOptions{});
  ASSERT_TRUE(client.is_handshake_done());
  for (const size_t size : {size_t{0}, size_t{100}, size_t{100'000}, size_t{1} << 20}) {
    ASSERT_TRUE(client.send(post("/size", std::string(size, 'x'))));
    EXPECT_EQ(client.read_reply().body, std::to_string(size));
  }
  Client old(running.at(), {.version = TLS1_2_VERSION});
  EXPECT_FALSE(old.is_handshake_done());
}

TEST(TlsServer, LargeAnswersAndPipelining) {
  const Running running({}, /*has_tls=*/true);
  Client client(running.at(), TlsOptions{});
  std::string all;
  for (int i = 0; i < 100; ++i) all += post("/size", std::string(static_cast<size_t>(i), 'x'));
  ASSERT_TRUE(client.send(all + get("/later")));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(client.read_reply().body, std::to_string(i));
  const Arrival arrival = running.script->next();
  arrival.responder.send({.body = std::string(5'000'000, 'y')});
  EXPECT_EQ(client.read_reply().body, std::string(5'000'000, 'y'));
}

TEST(TlsServer, AStreamAndItsAbort) {
  const Running running({}, /*has_tls=*/true);
  Client client(running.at(), TlsOptions{});
  ASSERT_TRUE(client.send(get("/later")));
  const Arrival arrival = running.script->next();
  Flag is_gone;
  arrival.responder.on_gone([&] { is_gone.raise(); });
  arrival.responder.start_stream();
  EXPECT_TRUE(arrival.responder.write("data: a\n\n"));
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_until("\n\n"), "data: a\n\n");
  client.close();
  EXPECT_TRUE(is_gone.wait());
}

TEST(TlsServer, PlainTextAndRubbishAreClosed) {
  const Running running({}, /*has_tls=*/true);
  // The second announces a ClientHello of 128 KiB, for which OpenSSL would take memory.
  const std::string large_hello("\x16\x03\x01\x40\x00\x01\x02\x00\x00\x03\x03", 11);
  for (const std::string& text : {get("/hi"), large_hello, std::string(5, '\0')}) {
    Client client(running.at());
    ASSERT_TRUE(client.send(text));
    EXPECT_TRUE(client.is_closed());
  }
  EXPECT_EQ(running.server->stats().failed, 3u);
}

}  // namespace
}  // namespace weft::web::test
