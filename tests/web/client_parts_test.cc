// The pure parts of the client: URLs, events, responses, the API's bodies from the other side.
#include <gtest/gtest.h>

#include "web/event_parser.h"
#include "web/message.h"
#include "web/openai.h"
#include "web/openai_client.h"
#include "web/response_parser.h"
#include "web/url.h"

namespace weft::web::test {
namespace {

TEST(Url, SaysWhereAServiceIs) {
  EXPECT_EQ(*parse_url("http://127.0.0.1:7781/v1"), (Url{false, {"127.0.0.1", 7781}, "/v1"}));
  EXPECT_EQ(*parse_url("HTTPS://example.org/a/v1//"), (Url{true, {"example.org", 443}, "/a/v1"}));
  EXPECT_EQ(*parse_url("http://example.org"), (Url{false, {"example.org", 80}, ""}));
  EXPECT_EQ(*parse_url("https://[::1]:8443/"), (Url{true, {"::1", 8443}, ""}));
  EXPECT_EQ(*parse_url("http://[2001:db8::1]/v1"), (Url{false, {"2001:db8::1", 80}, "/v1"}));
}

TEST(Url, IsWrittenAsItWasRead) {
  for (const char* text : {"http://127.0.0.1:7781/v1", "https://example.org/v1", "http://[::1]:81"})
    EXPECT_EQ(to_string(*parse_url(text)), text);
  EXPECT_EQ(host_of(*parse_url("https://[::1]/v1")), "[::1]");
  EXPECT_EQ(host_of(*parse_url("https://example.org:80/v1")), "example.org:80");
}

TEST(Url, RefusesWhatIsNone) {
  for (const char* text :
       {"", "127.0.0.1:7781", "ftp://a/", "http://", "http:///v1", "http://a:0/", "http://a:70000",
        "http://a:x", "http://user:password@a/", "http://a/?q=1", "http://a/#x", "http://a/\r\nX: y",
        "http://a b/", "http://[::1", "http://a/\x80", "http://::1/"}) {
    const auto url = parse_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code, ErrorCode::InvalidArgument);
  }
  EXPECT_FALSE(parse_url("http://" + std::string(3000, 'a')));
}

std::vector<ServerEvent> events_of(std::string_view bytes, size_t piece) {
  EventParser parser;
  std::vector<ServerEvent> events;
  for (size_t at = 0; at < bytes.size(); at += piece)
    EXPECT_TRUE(parser.feed(bytes.substr(at, piece), events));
  return events;
}

TEST(EventParser, ReadsWhatTheStandardShows) {
  struct Case {
    const char* what;
    std::string bytes;
    std::vector<ServerEvent> events;
  };
  const std::string nul(1, '\0');
  const Case cases[] = {
      {"one", "data: a\n\n", {{"", "", "a"}}},
      {"lines", "data: a\ndata: b\ndata\n\n", {{"", "", "a\nb\n"}}},
      {"ends", "data: a\r\rdata: b\r\n\r\ndata: c\n\n", {{"", "", "a"}, {"", "", "b"}, {"", "", "c"}}},
      {"comment", ": ping\n\ndata:a\n\n", {{"", "", "a"}}},
      {"one blank goes", "data:  a\n\n", {{"", "", " a"}}},
      {"mark of order",
       "\xEF\xBB\xBF"
       "data: a\n\n",
       {{"", "", "a"}}},
      {"an id stays",
       "id: r-1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n",
       {{"r-1", "", "a"}, {"r-1", "", "b"}, {"", "", "c"}}},
      {"an id without data", "id: r-1\n\ndata: b\n\n", {{"r-1", "", "b"}}},
      {"an id with NUL", "id: a" + nul + "\ndata: b\n\n", {{"", "", "b"}}},
      {"type", "event: error\ndata: a\n\ndata: b\n\n", {{"", "error", "a"}, {"", "", "b"}}},
      {"unknown fields", "retry: 5\nother: x\ndata: a\n\n", {{"", "", "a"}}},
      {"unfinished", "data: a\n\ndata: b\n", {{"", "", "a"}}},
      {"empty data", "data\n\n", {{"", "", ""}}},
  };
  for (const Case& one : cases)
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{1000}})
      EXPECT_EQ(events_of(one.bytes, piece), one.events) << one.what << ", " << piece << " bytes at a time";
}

TEST(EventParser, ReadsWhatTheServerWrites) {
  const std::string bytes = render_event("r-7", "a\nb") + render_event("", "[DONE]");
  EXPECT_EQ(events_of(bytes, 3), (std::vector<ServerEvent>{{"r-7", "", "a\nb"}, {"r-7", "", "[DONE]"}}));
}

TEST(EventParser, IsBounded) {
  for (const std::string& piece : {std::string("data: aaaaaaaaaa\n"), std::string("aaaaaaaaaaaaaaaa"),
                                   std::string("id: aaaaaaaaaaaaaaaaaaaa"), std::string(":aaaaaaaaaaaaaa")}) {
    EventParser parser(100);
    std::vector<ServerEvent> events;
    Status status;
    for (int i = 0; i < 20 && status; ++i) status = parser.feed(piece, events);
    ASSERT_FALSE(status) << piece;
    EXPECT_EQ(status.error().code, ErrorCode::ResourceExhausted);
    EXPECT_TRUE(events.empty());
  }
}

TEST(ResponseParser, ReadsABodyHoweverItIsFramed) {
  const std::string head = "HTTP/1.1 200 OK\r\nX-Name: b\r\n";
  const std::string interim = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n";
  for (const std::string& bytes :
       {head + "Content-Length: 5\r\n\r\nhello", head + "\r\nhello",
        interim + head + "Content-Length: 5\r\n\r\nhello",
        head + "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: z\r\n\r\n"}) {
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}}) {
      ResponseParser parser;
      std::string body;
      for (size_t at = 0; at < bytes.size(); at += piece) {
        parser.feed(std::string_view(bytes).substr(at, piece));
        body += parser.take_body();
      }
      parser.end();
      ASSERT_EQ(parser.state(), ResponseParser::State::Complete) << bytes;
      EXPECT_EQ(parser.status(), 200);
      EXPECT_EQ(parser.header("x-name"), "b");
      EXPECT_EQ(body, "hello");
    }
  }
}

TEST(ResponseParser, AnEmptyBodyInChunksMayComeByteByByte) {
  for (const size_t piece : {1, 2, 3, 4}) {
    const std::string_view bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    ResponseParser parser;
    for (size_t at = 0; at < bytes.size(); at += piece) parser.feed(bytes.substr(at, piece));
    EXPECT_EQ(parser.state(), ResponseParser::State::Complete) << piece;
  }
}

TEST(ResponseParser, RefusesWhatIsCutOffAndWhatIsNone) {
  std::string interims;
  for (int i = 0; i < 40; ++i) interims += "HTTP/1.1 100 Continue\r\n\r\n";
  for (const std::string& bytes :
       {std::string(), std::string("HTTP/1.1 200 OK\r\nContent-Le"), std::string("SSH-2.0-OpenSSH_9.2\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), interims,
        "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + std::string(100'000, 'x')}) {
    ResponseParser parser;
    parser.feed(bytes);
    parser.end();
    ASSERT_EQ(parser.state(), ResponseParser::State::Refused) << bytes.substr(0, 80);
    EXPECT_FALSE(parser.fault().empty());
  }
}

TEST(ClientBodies, ARequestIsReadAsItWasWritten) {
  GenerateRequest completion{.model = "m",
                             .prompt = std::string("Once\n\xC3\xA9"),
                             .max_tokens = 7,
                             .temperature = 0.5,
                             .top_p = 0.25,
                             .top_k = 4,
                             .seed = -1,
                             .stop = {"a", "b"},
                             .is_stream = true,
                             .includes_usage = true,
                             .logprobs = 2};
  EXPECT_EQ(*parse_completion(render_request(completion)), completion);
  completion.prompt = std::vector<uint32_t>{1, 2, 50256};
  EXPECT_EQ(*parse_completion(render_request(completion)), completion);
  using Role = ChatMessage::Role;
  const GenerateRequest chat{
      .kind = ApiKind::Chat,
      .model = "m",
      .prompt =
          std::vector<ChatMessage>{
              {Role::System, "s"}, {Role::User, "u"}, {Role::Assistant, "a"}, {Role::User, ""}},
      .logprobs = 0};
  EXPECT_EQ(*parse_chat(render_request(chat)), chat);
  EXPECT_EQ(render_request({.model = "\xff"}).find('\xff'), std::string::npos) << "JSON is UTF-8";
}

TEST(ClientBodies, ChunksAreReadAsTheyWereWritten) {
  for (const ApiKind kind : {ApiKind::Completion, ApiKind::Chat}) {
    EventWriter writer(
        {.id = "r", .model = "m", .system_fingerprint = "fp", .kind = kind, .includes_usage = true});
    std::string bytes = writer.begin();
    for (const char* text : {"a\n", "b"}) bytes += writer.piece({.text = text});
    bytes += writer.finish({.reason = FinishReason::Length, .usage = {3, 2}});
    std::string text, reason;
    Usage usage;
    for (const ServerEvent& event : events_of(bytes, 100)) {
      if (event.data == "[DONE]") continue;
      const auto chunk = parse_chunk(event.data);
      ASSERT_TRUE(chunk) << event.data;
      EXPECT_EQ(chunk->system_fingerprint, "fp");
      text += chunk->text;
      if (!chunk->reason.empty()) reason = chunk->reason;
      if (chunk->usage) usage = *chunk->usage;
    }
    EXPECT_EQ(text, "a\nb");
    EXPECT_EQ(reason, "length");
    EXPECT_EQ(usage.prompt_tokens, 3u);
    EXPECT_EQ(usage.completion_tokens, 2u);
  }
}

TEST(ClientBodies, HostileAnswersAreErrorsOrEmpty) {
  for (const char* text : {"", "[]", "null", "{", "{\"choices\":"}) EXPECT_FALSE(parse_chunk(text)) << text;
  EXPECT_FALSE(parse_chunk(std::string(1 << 20, '[')));
  for (const char* text :
       {"{}", R"({"choices":{}})", R"({"choices":[]})", R"({"choices":[7]})",
        R"({"choices":[{"delta":7,"text":{},"finish_reason":[]}]})", R"({"usage":{"prompt_tokens":-1}})"}) {
    const auto chunk = parse_chunk(text);
    ASSERT_TRUE(chunk) << text;
    EXPECT_TRUE(chunk->text.empty() && chunk->reason.empty());
  }
  EXPECT_FALSE(parse_models("{}"));
  EXPECT_FALSE(parse_models(R"({"data":[{"id":7}]})"));
  EXPECT_EQ(*parse_models(R"({"data":[{"id":"a"},{"id":"b"}]})"), (std::vector<std::string>{"a", "b"}));
}

TEST(ClientBodies, ErrorsKeepTheServicesWords) {
  const Error full = error_of_answer(
      400, render_error({.code = kContextLengthExceeded, .message = "200 tokens, the context is 128"}), "");
  EXPECT_EQ(full.code, ErrorCode::OutOfRange);
  EXPECT_NE(full.message.find("200 tokens, the context is 128"), std::string::npos);
  const Error many = error_of_answer(429, render_error({.message = "too many\x1b[2J"}), "7");
  EXPECT_EQ(many.code, ErrorCode::ResourceExhausted);
  EXPECT_NE(many.message.find("try again in 7 s"), std::string::npos);
  EXPECT_EQ(many.message.find('\x1b'), std::string::npos);
  EXPECT_EQ(error_of_answer(401, "", "").code, ErrorCode::PermissionDenied);
  EXPECT_EQ(error_of_answer(404, "{}", "").code, ErrorCode::NotFound);
  EXPECT_EQ(error_of_answer(502, "<html>", "").code, ErrorCode::Unavailable);
  EXPECT_EQ(error_of_answer(418, "<html>", "").code, ErrorCode::InvalidArgument);
  const auto within = parse_chunk(render_error({.type = "service_unavailable_error", .message = "gone"}));
  ASSERT_FALSE(within);
  EXPECT_EQ(within.error().code, ErrorCode::Unavailable);
}

TEST(ClientBodies, IdsOfEventsAreOfOneForm) {
  const auto id = parse_event_id("chatcmpl-0a-12");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->stream, "chatcmpl-0a");
  EXPECT_EQ(id->number, 12u);
  for (const char* text : {"", "-", "a-", "-1", "a-0", "a-x", "a-1x", "a/../b-1", "a b-1", "a\r\nX: y-1",
                           "a-99999999999999999999"})
    EXPECT_FALSE(parse_event_id(text)) << text;
  EXPECT_FALSE(parse_event_id(std::string(65, 'a') + "-1"));
}

}  // namespace
}  // namespace weft::web::test
