#include "web/request_parser.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::web {
namespace {

using State = RequestParser::State;

// As a connection does it: what is not taken comes again, with `piece` more bytes.
struct Reading {
  std::string rest;
  RequestParser parser;
  explicit Reading(const RequestLimits& limits = {}) : parser(limits) {}

  State feed(std::string_view bytes, size_t piece = SIZE_MAX) {
    while (!bytes.empty() && !is_over()) {
      const size_t size = std::min(piece, bytes.size());
      rest += bytes.substr(0, size);
      bytes.remove_prefix(size);
      drain();
    }
    rest += bytes;
    return parser.state();
  }
  bool is_over() const { return parser.state() == State::Complete || parser.state() == State::Refused; }
  void drain() {
    for (;;) {
      const State before = parser.state();
      rest.erase(0, parser.feed(rest));
      if (parser.state() == before || is_over() || rest.empty()) return;
    }
  }
};

constexpr std::string_view kPost =
    "POST /v1/chat%20x?a=1&b=%2f+c HTTP/1.1\r\nHost: me\r\nX-Name:  some value \r\ncontent-length: "
    "5\r\n\r\nhello";

TEST(RequestParser, AWholeRequest) {
  Reading reading;
  ASSERT_EQ(reading.feed(kPost), State::Complete);
  EXPECT_TRUE(reading.parser.keeps_alive());
  EXPECT_FALSE(reading.parser.is_http_1_0());
  const Request request = reading.parser.take();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/chat x");
  EXPECT_EQ(request.query, (std::map<std::string, std::string>{{"a", "1"}, {"b", "/ c"}}));
  EXPECT_EQ(request.header("x-name"), "some value");
  EXPECT_EQ(request.header("absent"), std::nullopt);
  EXPECT_EQ(request.body, "hello");
}

TEST(RequestParser, WhereItIsCutDoesNotMatter) {
  const std::string chunked =
      "POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n5;x=\"y\"\r\nDEFGH\r\n0\r\n"
      "Trailer: z\r\n\r\n";
  for (size_t piece = 1; piece < 40; ++piece) {
    Reading plain, other;
    ASSERT_EQ(plain.feed(kPost, piece), State::Complete) << piece;
    EXPECT_EQ(plain.parser.take().body, "hello");
    ASSERT_EQ(other.feed(chunked, piece), State::Complete) << piece;
    const Request request = other.parser.take();
    EXPECT_EQ(request.body, "abcDEFGH");
    EXPECT_EQ(request.headers.size(), 2u) << "a trailer is no header";
    EXPECT_EQ(other.rest, "");
  }
}

TEST(RequestParser, TheNextRequestStays) {
  Reading reading;
  ASSERT_EQ(reading.feed(std::string(kPost) + "GET /next HTTP/1.1\r\n"), State::Complete);
  EXPECT_EQ(reading.rest, "GET /next HTTP/1.1\r\n");
}

TEST(RequestParser, TheHeadIsSeenBeforeTheBody) {
  Reading reading;
  ASSERT_EQ(reading.feed("POST /a HTTP/1.1\r\nHost: me\r\nExpect: 100-Continue\r\nContent-Length: 9\r\n\r\n"),
            State::Body);
  EXPECT_EQ(reading.parser.request().path, "/a");
  EXPECT_EQ(reading.parser.body_bytes(), 9u);
  EXPECT_TRUE(reading.parser.expects_continue());
}

struct BadRequest {
  const char* name;
  std::string text;
  int status;
};

std::vector<BadRequest> bad_requests() {
  const std::string host = "Host: me\r\n";
  std::vector<BadRequest> bad = {
      {"no_request", "hello\r\n\r\n", 400},
      {"tls", "\x16\x03\x01\x02\x01\x01\xfc\x03\x03" + std::string(64, 'a'), 400},
      {"http2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"no_host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two_hosts", "GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"no_path", "GET example.org HTTP/1.1\r\n" + host + "\r\n", 400},
      {"bad_percent", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"nul", "GET /%00 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"bad_query", "GET /?a=%f HTTP/1.1\r\n" + host + "\r\n", 400},
      {"long_target", "GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"space_in_name", "GET / HTTP/1.1\r\n" + host + "a b: c\r\n\r\n", 400},
      {"space_before_colon", "GET / HTTP/1.1\r\n" + host + "Content-Length : 3\r\n\r\nabc", 400},
      {"bare_line_feed", "GET / HTTP/1.1\n" + host + "\r\n", 505},
      {"two_lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"negative_length", "POST / HTTP/1.1\r\n" + host + "Content-Length: -3\r\n\r\n", 400},
      {"huge_length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"length_and_chunked",
       "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"gzip", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"gzip_chunked", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"chunked_1_0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
      {"expectation", "POST / HTTP/1.1\r\n" + host + "Expect: cake\r\nContent-Length: 3\r\n\r\n", 417},
      {"large_body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1048577\r\n\r\n", 413},
      {"large_chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n100001\r\n", 413},
      {"bad_chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"long_extension",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(20000, 'a'), 431},
      {"endless_line", "GET / HTTP/1.1\r\nX: " + std::string(20000, 'a'), 431},
      {"endless_method", std::string(20000, 'A'), 431},
  };
  std::string many = "GET / HTTP/1.1\r\n" + host;
  for (int i = 0; i < 70; ++i) many += "X: y\r\n";
  bad.push_back({"many_headers", many + "\r\n", 431});
  std::string large = "GET / HTTP/1.1\r\n" + host;
  for (int i = 0; i < 20; ++i) large += "X: " + std::string(1000, 'y') + "\r\n";
  bad.push_back({"large_headers", large, 431});
  return bad;
}

TEST(RequestParser, WhatIsRefused) {
  for (const BadRequest& bad : bad_requests())
    for (const size_t piece : {size_t{1}, size_t{7}, SIZE_MAX}) {
      Reading reading;
      ASSERT_EQ(reading.feed(bad.text, piece), State::Refused) << bad.name << ", pieces of " << piece;
      EXPECT_EQ(reading.parser.refusal().status, bad.status)
          << bad.name << ": " << reading.parser.refusal().message;
      EXPECT_NE(reading.parser.refusal().message, "");
    }
}

TEST(RequestParser, ManySmallChunksEndAtTheLimit) {
  Reading reading({.body_bytes_max = 1000});
  reading.feed("POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(reading.feed("1\r\nx\r\n"), State::Body) << i;
  ASSERT_EQ(reading.feed("1\r\nx\r\n"), State::Refused);
  EXPECT_EQ(reading.parser.refusal().status, 413);
}

TEST(RequestParser, KeepAliveByVersion) {
  const auto keeps = [](const std::string& text) {
    Reading reading;
    EXPECT_EQ(reading.feed(text), State::Complete);
    return reading.parser.keeps_alive();
  };
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
}

// Beast asserts that the last chunk comes in pieces that are not too small.
TEST(RequestParser, AnEmptyBodyInChunksMayComeByteByByte) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& body :
       {std::string("0\r\n\r\n"), std::string("0;a=b\r\nT: z\r\n\r\n"), std::string("1\r\nx\r\n0\r\n\r\n")}) {
    for (const size_t piece : {1, 2, 3, 4}) {
      Reading reading;
      EXPECT_EQ(reading.feed(head + body, piece), State::Complete) << body << ", " << piece;
      EXPECT_EQ(reading.parser.take().body, body.starts_with('1') ? "x" : "");
    }
  }
}

// Whatever comes: it ends, it never holds more than a head, and what is complete is within the limits.
TEST(RequestParser, MutatedRequests) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 36);
    auto bad = bad_requests();
    std::string text = rng.below(2) == 0 ? std::string(kPost) : bad[rng.below(bad.size())].text;
    text.resize(std::min<size_t>(text.size(), 3000));
    for (uint64_t i = rng.below(4); i > 0; --i)
      text[rng.below(text.size())] = static_cast<char>(rng.below(256));
    Reading reading;
    reading.feed(text, 1 + rng.below(50));
    ASSERT_LE(reading.rest.size(), text.size());
    if (reading.parser.state() == State::Complete) {
      const Request request = reading.parser.take();
      EXPECT_TRUE(request.path.starts_with('/'));
      EXPECT_LE(request.headers.size(), 64u);
    }
  }
}

TEST(Message, EventsOfSeveralLines) {
  EXPECT_EQ(render_event("r-1", "{\"a\":1}"), "id: r-1\ndata: {\"a\":1}\n\n");
  EXPECT_EQ(render_event("", "[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(render_event("", "a\nb\n"), "data: a\ndata: b\ndata: \n\n");
}

}  // namespace
}  // namespace weft::web
