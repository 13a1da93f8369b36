// The console: it draws what the server answers, and keeps nothing but how the reader wants it drawn.

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./app";
import { connect } from "./live";
import { showTheme } from "./theme";

showTheme();
connect();
render(<App />, document.getElementById("console")!);
