#include "chat/line_editor.h"

#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "console.h"

namespace fovea::app {
namespace {

constexpr int kHistoryLines = 1000;

class PlainLines : public LineEditor {
 public:
  bool read(std::string* line) override { return static_cast<bool>(std::getline(std::cin, *line)); }
};

class TerminalLines : public LineEditor {
 public:
  TerminalLines(const std::string& prompt, const std::string& history_file)
      : prompt_(prompt), history_file_(history_file) {
    // Characters beyond ASCII are edited as such only where the locale knows them.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
    editor_ = el_init("fovea", stdin, stderr, stderr);
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &TerminalLines::show_prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 1);  // the terminal is as it was when Ctrl-C ends the program
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_ADDFN, "complete-file", "Complete the name of a file", _el_fn_complete);
    el_set(editor_, EL_BIND, "^I", "complete-file", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(editor_, nullptr);  // ~/.editrc
  }
  ~TerminalLines() override {
    el_end(editor_);
    history_end(history_);
  }
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;

  bool read(std::string* line) override {
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (text == nullptr || count <= 0) return false;
    line->assign(text, static_cast<std::size_t>(count));
    while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
    if (line->empty()) return true;
    HistEvent event;
    history(history_, &event, H_ENTER, line->c_str());
    if (history_file_.empty()) return true;
    // After each line: Ctrl-C may end the program at the next prompt. What was typed is nobody else's to read.
    history(history_, &event, H_SAVE, history_file_.c_str());
    ::chmod(history_file_.c_str(), S_IRUSR | S_IWUSR);
    return true;
  }

 private:
  static char* show_prompt(EditLine* editor) {
    TerminalLines* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self->prompt_.data();
  }

  std::string prompt_, history_file_;
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::create(const std::string& prompt, const std::string& history_file) {
  if (isatty(STDIN_FILENO) == 1 && stderr_is_terminal()) return std::make_unique<TerminalLines>(prompt, history_file);
  return std::make_unique<PlainLines>();
}

std::string state_file(const std::string& name) {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != '\0') {
    folder = state;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".local" / "state";
  } else {
    return "";
  }
  folder /= "fovea";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : (folder / name).string();
}

}  // namespace fovea::app
