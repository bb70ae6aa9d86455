#include "tests/fuzz/web_seeds.h"

#include <span>
#include <string>

namespace weft::fuzz {

namespace {

struct Text {
  const char* name;
  std::string_view text;
};

// The first byte is what the target reads as a choice.
std::vector<Seed> seeds_from(std::span<const Text> texts, std::string_view choices) {
  std::vector<Seed> seeds;
  for (const Text& text : texts)
    for (const char choice : choices) {
      const std::string input = choice + std::string(text.text);
      const auto bytes = std::as_bytes(std::span(input));
      seeds.push_back({std::string(text.name) + "_" + std::to_string(static_cast<unsigned char>(choice)),
                       {bytes.begin(), bytes.end()}});
    }
  return seeds;
}

constexpr Text kRequests[] = {
    {"get", "GET /v1/models?a=b&c=%20d HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\n\r\n"},
    {"post", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"},
    {"chunked",
     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0\r\nT: z\r\n\r\n"},
    {"empty_chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {"pipelined", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"},
    {"continue", "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2, 2\r\n\r\nab"},
    {"folded", "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"},
};

constexpr Text kBodies[] = {
    {"completion",
     R"({"model":"m","prompt":"Once","max_tokens":7,"temperature":0.5,"top_p":0.2,"top_k":4,"seed":-1,)"
     R"("stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"logprobs":2,"n":1,"user":"u"})"},
    {"tokens",
     R"({"model":"m","prompt":[1,2,50256],"best_of":1,"echo":false,"suffix":null,"logit_bias":{}})"},
    {"chat",
     R"({"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text",)"
     R"("text":"b\u00e9"}]},{"role":"assistant","content":"","tool_calls":[]}],"logprobs":true,"top_logprobs":3})"},
    {"unimplemented",
     R"({"model":"m","messages":[{"role":"tool","content":"a"}],"tools":[{}],"response_format":{"type":"x"}})"},
    {"nested", "{\"model\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}"},
    {"numbers", R"({"model":"m","prompt":"a","temperature":1e400,"max_tokens":18446744073709551616})"},
};

constexpr Text kAnswers[] = {
    {"empty", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {"stream",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2f\r\nid: r-1\ndata: "
     "{\"choices\":[{\"text\":\"a\"}]}\n\n: "
     "x\r\n\r\n10\r\ndata: [DONE]\r\n\r\n\r\n0\r\n\r\n"},
    {"chat",
     "HTTP/1.1 200 OK\r\n\r\nid: r-2\r\nevent: e\rdata: "
     "{\"choices\":[{\"delta\":{\"content\":\"b\"},\r\ndata: "
     "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3}}\r\n\r\n"},
    {"models", "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{\"data\":[{\"id\":\"fake\"}]}"},
    {"refused",
     "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: "
     "50\r\n\r\n{\"error\":{\"message\":\"full\","
     "\"code\":\"x\",\"type\":\"y\"}}"},
    {"interim",
     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nConnection: close\r\n\r\n\xEF\xBB\xBF"
     "data\n\n"},
    {"url", "https://[2001:db8::1]:8443/a/v1"},
};

}  // namespace

std::vector<Seed> web_seeds(std::string_view target) {
  using namespace std::string_view_literals;
  if (target == "http") return seeds_from(kRequests, "\0\x06\xff"sv);
  if (target == "answers") return seeds_from(kAnswers, "\0\x06\xff"sv);
  if (target == "openai") return seeds_from(kBodies, "\0\1"sv);
  return {};
}

}  // namespace weft::fuzz
