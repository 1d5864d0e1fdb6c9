// Options of a command: lists of numbers, the environment, --help; progress; hints about models of other kinds.
#include "options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "console.h"
#include "engine_flags.h"
#include "environment.h"
#include "help.h"
#include "model_hint.h"

namespace fovea::app {
namespace {

TEST(Environment, KubernetesLinksAreNoOptions) {
  for (const char* link : {"FOVEA_PORT=tcp://10.0.0.1:80", "FOVEA_PORT_80_TCP=tcp://10.0.0.1:80",
                           "FOVEA_PORT_80_TCP_ADDR=10.0.0.1", "FOVEA_SERVICE_HOST=10.0.0.1", "FOVEA_SERVICE_PORT=80"}) {
    EXPECT_TRUE(is_service_link(link)) << link;
    EXPECT_TRUE(unknown_variables({link}, {}).empty()) << link;
  }
  EXPECT_FALSE(is_service_link("FOVEA_PORT=8000"));
  EXPECT_FALSE(is_service_link("FOVEA_PORT"));
  EXPECT_FALSE(is_service_link("FOVEA_PORTS=1"));
}

TEST(Environment, ErrorsNameTheVariable) {
  const std::string message = "Could not convert: --port = many\n";
  EXPECT_EQ(name_variable(message, {"FOVEA_HOST=many", "FOVEA_PORT=many"}),
            message + "(FOVEA_PORT is set in the environment)\n");
  EXPECT_EQ(name_variable(message, {"FOVEA_PORT=80", "FOVEA_PORT="}), message);
}

TEST(Environment, NamesThatNothingReadsAreSaidWithTheNearest) {
  const auto lines = unknown_variables({"PATH=/bin", "FOVEA_CACHE_DIR=/tmp", "FOVEA_MAX_CONTEXT=4096",
                                        "FOVEA_MAX_CONTXT=1=2", "FOVEA_LOG_LEVL", "FOVEA_ZZZZ=1"},
                                       {"FOVEA_MAX_CONTEXT", ""});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "the environment sets \"FOVEA_MAX_CONTXT\", which nothing reads; FOVEA_MAX_CONTEXT is near");
  EXPECT_EQ(lines[1], "the environment sets \"FOVEA_LOG_LEVL\", which nothing reads; FOVEA_LOG_LEVEL is near");
  EXPECT_EQ(lines[2], "the environment sets \"FOVEA_ZZZZ\", which nothing reads");
}

TEST(Options, ListsOfNumbersHaveNoHoles) {
  for (const char* wrong : {"0,,1", ",1", "1,", "", "1 2", "x", "99999999999"}) {
    std::vector<std::int32_t> list;
    CLI::App app;
    Options options(&app);
    options.add("layers", list, "");
    EXPECT_THROW(app.parse(std::string("--layers=\"") + wrong + "\""), CLI::ParseError) << wrong;
  }
  std::vector<std::int32_t> list = {7};
  CLI::App app;
  Options options(&app);
  options.add("layers", list, "");
  app.parse("--layers 0,1 --layers -2");
  EXPECT_EQ(list, (std::vector<std::int32_t>{0, 1, -2}));
  EXPECT_TRUE(options.given("layers"));
}

std::string help_of(const std::function<void(Options&)>& declare) {
  CLI::App app{"Does something", "tool"};
  Options options(&app);
  declare(options);
  app.formatter(std::make_shared<HelpFormatter>(options));
  return app.help();
}

TEST(Help, ShowsDefaultsChoicesAndSections) {
  std::int32_t count = 7;
  bool shared = true;
  std::string kind = "red", model;
  const std::string help = help_of([&](Options& options) {
    options.add("count", count, "How many");
    options.section("Colours");
    options.add_choice("kind", kind, {"", "red", "blue"}, "Which");
    options.add_flag("shared", shared, "With others");
    options.add_model(model, "What to load");
  });
  EXPECT_NE(help.find("--count VALUE"), std::string::npos) << help;
  EXPECT_NE(help.find("How many [7]"), std::string::npos) << help;
  EXPECT_NE(help.find("\nColours:\n"), std::string::npos) << help;
  EXPECT_NE(help.find("Which; one of red, blue [red]"), std::string::npos) << help;
  EXPECT_NE(help.find("--[no-]shared"), std::string::npos) << help;
  EXPECT_NE(help.find("With others [on]"), std::string::npos) << help;
  EXPECT_NE(help.find("-m, --model VALUE"), std::string::npos) << help;
  EXPECT_NE(help.find("[MODEL]"), std::string::npos) << help;
  for (const char* never : {"{", "\n\n\n", "FOVEA_COUNT"}) EXPECT_EQ(help.find(never), std::string::npos) << help;
}

TEST(Help, OfOneRequestLeavesOutWhatSeveralNeed) {
  EngineFlags flags;
  EXPECT_NE(help_of([&](Options& options) { flags.declare(options); }).find("--max-queued"), std::string::npos);
  EngineFlags one;
  EXPECT_EQ(help_of([&](Options& options) { one.declare_for_one(options); }).find("--max-queued"), std::string::npos);
}

TEST(Options, TheModelIsABareArgumentToo) {
  for (const char* line : {"here", "-m here", "--model here", "--model=here"}) {
    std::string model;
    CLI::App app;
    Options options(&app);
    options.add_model(model, "");
    app.parse(line);
    EXPECT_EQ(model, "here") << line;
  }
  std::string prompt, model;
  CLI::App app;
  Options options(&app);
  options.add_positional("prompt", prompt, "");
  options.add_model(model, "");
  app.parse("-m here hello");
  EXPECT_EQ(model, "here");
  EXPECT_EQ(prompt, "hello");
}

TEST(Progress, SaysRateAndTimeLeft) {
  EXPECT_EQ(progress_text("reading the prompt", 4000, 34000, "tokens", 8.0),
            "reading the prompt: 4000 of 34000 tokens, 500 tokens a second, 60 s left");
  EXPECT_EQ(progress_text("answers", 0, 10, "", 3.0), "answers: 0 of 10");
  EXPECT_EQ(progress_text("answers", 5, 10, "", 10.0), "answers: 5 of 10, 10 s left");
}

TEST(ModelHint, SaysTheNextStep) {
  const auto folder = std::filesystem::temp_directory_path() / ("fovea_hint_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "pieces");
  std::filesystem::create_directories(folder / "pickled");
  const auto touch = [](const std::filesystem::path& path) { std::ofstream(path) << "x"; };
  touch(folder / "pieces" / "tokenizer.model");
  touch(folder / "pickled" / "pytorch_model.bin");
  const auto hint = [](const std::string& model) {
    return std::string(with_model_hint(not_found("E"), model).message());
  };
  EXPECT_NE(hint("Qwen/Qwen3-0.6B").find("hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"), std::string::npos);
  EXPECT_NE(hint("x/model.Q4_K_M.gguf").find("GGUF"), std::string::npos);
  EXPECT_NE(hint(folder / "pieces" / "tokenizer.model").find("the model's folder"), std::string::npos);
  EXPECT_NE(hint(folder / "pieces").find("AutoTokenizer"), std::string::npos);
  EXPECT_NE(hint(folder / "pickled").find("AutoModelForCausalLM"), std::string::npos);
  EXPECT_NE(hint(folder / "model.safetensors").find("E"), std::string::npos);
  for (const std::string& plain :
       {std::string(), std::string("models"), folder.string(), folder.string() + "/none/of"}) {
    EXPECT_EQ(hint(plain), "E") << plain;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fovea::app
