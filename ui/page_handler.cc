#include "ui/page_handler.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ui/asker.h"
#include "ui/assets.h"
#include "ui/board.h"
#include "ui/plan_page.h"

namespace weft::ui {

namespace {

using web::Request;
using web::Responder;
using web::Response;
using Json = nlohmann::ordered_json;

constexpr uint32_t kTokensMax = 4096;  // of what is tried
constexpr std::string_view kPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";
constexpr std::string_view kPolicyOfPlan =  // no script at all
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

Response guarded(Response response, std::string_view policy = kPolicy) {
  for (auto& [name, value] :
       std::initializer_list<web::Header>{{"Content-Security-Policy", std::string(policy)},
                                          {"X-Frame-Options", "DENY"},
                                          {"X-Content-Type-Options", "nosniff"},
                                          {"Referrer-Policy", "no-referrer"},
                                          {"Cross-Origin-Resource-Policy", "same-origin"},
                                          {"Cache-Control", "no-store"}})
    response.headers.push_back({name, value});
  return response;
}
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
Response error(int status, const std::string& message) {
  return guarded({.status = status, .body = dump({{"error", message}})});
}
Response error(const Error& error) {
  const int status = error.code == ErrorCode::NotFound           ? 404
                     : error.code == ErrorCode::PermissionDenied ? 403
                     : error.code == ErrorCode::InvalidArgument  ? 400
                     : error.code == ErrorCode::Internal         ? 500
                                                                 : 503;
  return ui::error(status, error.message);
}
Response refused(const Refused& why) {
  Response response = error(why.status, why.message);
  if (why.retry_after > 0) response.headers.push_back({"Retry-After", std::to_string(why.retry_after)});
  return response;
}
Response busy() { return error(503, "too many pages ask at once"); }

// Nothing: it is no number.
std::optional<uint64_t> query_number(const Request& request, const std::string& name) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return 0;
  uint64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto parsed = std::from_chars(found->second.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

// The body, an object; of one that is none all reads as absent.
Json body_of(const Request& request) {
  Json json = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}
std::string text_of(const Json& body, const char* name) {
  const auto found = body.find(name);
  return found != body.end() && found->is_string() ? found->get<std::string>() : std::string();
}
std::optional<uint64_t> job_of(const Json& body) {
  const auto found = body.find("job");
  if (found == body.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

// What is tried, within bounds. Nothing: a field is not what it should be.
std::optional<web::GenerateRequest> trial_of(const Json& body) {
  web::GenerateRequest request{.model = text_of(body, "model"), .is_stream = true};
  const std::string prompt = text_of(body, "prompt");
  const auto tokens = body.find("max_tokens"), temperature = body.find("temperature"),
             chat = body.find("chat");
  if (request.model.empty() || prompt.empty()) return std::nullopt;
  if (tokens == body.end() || !tokens->is_number_unsigned()) return std::nullopt;
  if (temperature == body.end() || !temperature->is_number()) return std::nullopt;
  const auto most = tokens->get<uint64_t>();
  request.temperature = temperature->get<double>();
  if (most < 1 || most > kTokensMax || !(request.temperature >= 0 && request.temperature <= 2))
    return std::nullopt;
  request.max_tokens = static_cast<uint32_t>(most);
  const bool is_chat = chat != body.end() && chat->is_boolean() && chat->get<bool>();
  request.kind = is_chat ? web::ApiKind::Chat : web::ApiKind::Completion;
  if (is_chat)
    request.prompt = std::vector<web::ChatMessage>{{web::ChatMessage::Role::User, prompt}};
  else
    request.prompt = prompt;
  return request;
}

class Page final : public web::Handler {
 public:
  explicit Page(PageParts parts)
      : parts_(std::move(parts)),
        access_(parts_.access),
        board_(*parts_.broker),
        broker_asker_([this] { parts_.broker->disconnect(); }),
        model_asker_([] {}) {}
  ~Page() override {
    parts_.broker->interrupt();
    if (parts_.models) parts_.models->interrupt();
  }

  std::optional<Response> on_head(const Request& request) override;
  void on_request(Request request, Responder responder) override;
  Response on_refused(int status, const std::string& message) override { return error(status, message); }

 private:
  Now now() const { return {parts_.clock(), parts_.unix_ms()}; }
  void get(const Request& request, const Responder& responder);
  void post(const Request& request, const Responder& responder);
  void get_state(const Request& request, const Responder& responder);
  void get_plan(const Request& request, const Responder& responder);
  void get_models(const Responder& responder);
  void open_session(const Request& request, const Responder& responder);
  void change(const Request& request, const Responder& responder);
  void try_model(const Request& request, const Responder& responder);
  // `work` gives the answer, on the thread that asks the broker.
  void answer_later(Asker& asker, const Responder& responder, std::function<Response()> work) {
    if (!asker.ask([responder, work = std::move(work)] { responder.send(work()); })) responder.send(busy());
  }

  const PageParts parts_;
  Access access_;                     // the server's thread
  Board board_;                       // the thread of broker_asker_
  Asker broker_asker_, model_asker_;  // last: their threads end before the rest goes
};

bool needs_session(const std::string& path) {
  return path == "/plan" || (path.starts_with("/api/") && path != "/api/session");
}

std::optional<Response> Page::on_head(const Request& request) {
  if (const auto why = access_.check_source(request)) return refused(*why);
  if (request.method != "GET" && request.method != "HEAD" && request.method != "POST")
    return error(405, "only GET, HEAD and POST");
  if (needs_session(request.path))
    if (const auto why = access_.check_session(request, parts_.clock())) return refused(*why);
  if (request.method == "POST" &&
      !request.header("content-type").value_or("").starts_with("application/json"))
    return error(415, "the body is application/json");
  return std::nullopt;
}

void Page::on_request(Request request, Responder responder) {
  if (request.method == "POST")
    post(request, responder);
  else
    get(request, responder);
}

void Page::get(const Request& request, const Responder& responder) {
  if (request.path == "/api/state") return get_state(request, responder);
  if (request.path == "/api/models") return get_models(responder);
  if (request.path == "/plan") return get_plan(request, responder);
  const auto asset = find_asset(request.path);
  if (!asset) return responder.send(error(404, "there is no such page"));
  responder.send(
      guarded({.content_type = std::string(asset->content_type), .body = std::string(asset->bytes)}));
}

void Page::post(const Request& request, const Responder& responder) {
  if (request.path == "/api/session") return open_session(request, responder);
  if (request.path == "/api/stop" || request.path == "/api/resume") return change(request, responder);
  if (request.path == "/api/try") return try_model(request, responder);
  responder.send(error(404, "nothing can be changed there"));
}

void Page::get_state(const Request& request, const Responder& responder) {
  const auto job = query_number(request, "job"), generation = query_number(request, "generation"),
             points = query_number(request, "points"), evaluations = query_number(request, "evaluations");
  if (!job || !generation || !points || !evaluations) return responder.send(error(400, "a number is none"));
  answer_later(broker_asker_, responder, [this, look = Look{*job, *generation, *points, *evaluations}] {
    return guarded({.body = board_.look(look, now())});
  });
}

void Page::get_plan(const Request& request, const Responder& responder) {
  const auto job = query_number(request, "job");
  if (!job || *job == 0) return responder.send(error(400, "say which job: /plan?job=1"));
  answer_later(broker_asker_, responder, [this, number = *job] {
    const auto page = board_.plan_page(number, now());
    if (!page) return error(page.error());
    return guarded({.content_type = "text/html; charset=utf-8", .body = *page}, kPolicyOfPlan);
  });
}

void Page::get_models(const Responder& responder) {
  if (!parts_.models) return responder.send(error(404, "nobody said where models are served: weft ui --url"));
  answer_later(model_asker_, responder, [this] {
    const auto models = parts_.models->models();
    return models ? guarded({.body = dump({{"models", *models}})}) : error(models.error());
  });
}

void Page::open_session(const Request& request, const Responder& responder) {
  const auto cookie =
      access_.open_session(text_of(body_of(request), "key"), request.remote, parts_.draw(), parts_.clock());
  if (!cookie) return responder.send(refused(cookie.error()));
  Response response = guarded({.body = "{}"});
  response.headers.push_back({"Set-Cookie", *cookie});
  responder.send(response);
}

void Page::change(const Request& request, const Responder& responder) {
  const auto job = job_of(body_of(request));
  if (!job) return responder.send(error(400, "say which job: {\"job\": 1}"));
  const bool stops = request.path == "/api/stop";
  answer_later(broker_asker_, responder, [this, number = *job, stops] {
    const Status status = stops ? board_.stop(number) : board_.resume(number);
    return status ? guarded({.body = "{}"}) : error(status.error());
  });
}

void Page::try_model(const Request& request, const Responder& responder) {
  if (!parts_.models) return responder.send(error(404, "nobody said where models are served: weft ui --url"));
  auto trial = trial_of(body_of(request));
  if (!trial)
    return responder.send(error(400, "a model, a prompt, max_tokens of 1 to 4096, temperature of 0 to 2"));
  const bool is_taken = model_asker_.ask([this, responder, trial = std::move(*trial)] {
    if (responder.is_gone()) return;
    responder.start_stream();
    const auto say = [&](const Json& json) { return responder.write(web::render_event("", dump(json))); };
    const Status status = parts_.models->generate(trial, [&](const std::string& text) {
      return say({{"text", text}});
    });
    say(status ? Json{{"end", true}} : Json{{"error", status.error().message}});
    responder.finish();
  });
  if (!is_taken) responder.send(busy());
}

}  // namespace

std::shared_ptr<web::Handler> make_page(PageParts parts) { return std::make_shared<Page>(std::move(parts)); }

web::ServerLimits page_limits() {
  web::ServerLimits limits;
  limits.request.body_bytes_max = 256 << 10;
  limits.connections_max = 256;
  limits.connections_max_per_address = 64;
  limits.bodies_bytes_max = 8 << 20;
  limits.unsent_bytes_max = 64 << 20;
  return limits;
}

}  // namespace weft::ui
